// Attention of rows over the keys of their own sequence, read through its slots. Keys are taken in chunks of fixed logical positions
// [0, 64), [64, 128), ...; each chunk gives a maximum, a sum and a weighted value. Chunks are combined in order to pieces of fixed
// positions, and pieces in order. So a row's result depends on nothing but its own position, query and keys: neither on other rows, nor
// on how blocks lie or work is shared.
#pragma once
#include "linear.hpp"

namespace {

constexpr int CHUNK = 64;            // keys
constexpr int PIECE = 2;             // chunks; what a thread takes at a time
constexpr int ROW_BLOCK = 8;         // rows of a sequence that share the reading of keys
constexpr int HEADS = 3;             // queries of a row that go through a chunk together
constexpr int MAX_HEAD_DIM = 256;

// What keys say for one query: weighted values [stride], their largest score and the sum of weights.
INLINE int64_t state_size(int64_t head_dim) { return ceil_div(head_dim, LANES) * LANES + LANES; }

struct Attention {
    const Model& m;
    const Pass& pass;
    int layer;
    const float* queries;  // [row][query_stride], rotated
    int64_t query_stride;
    Operand out;   // [row][heads * head_dim]
    float* parts;  // states, see attend
    bool shared;
};

// Rows [first, first + rows) of a span under one head of keys.
struct Block {
    const Span* span;
    int64_t first, rows, head;
    int64_t position(int64_t r) const { return span->length - span->rows + first + r; }
    int64_t pieces(int64_t r) const { return position(r) / (CHUNK * PIECE) + 1; }  // that row r sees
    int64_t pieces() const { return pieces(rows - 1); }
};

// A chunk's keys or values, each as floats [stride], zeros behind head_dim.
struct Chunk {
    const float* row[CHUNK];
    alignas(64) float widened[CHUNK * MAX_HEAD_DIM];
};

INLINE int64_t slot_of(const Span& span, int64_t i) { return span.slots ? span.slots[i] : span.base + i; }

// Rows that are floats already stay where they are. Behind `count` there are zeros, up to a multiple of four. The next chunk is fetched
// meanwhile: rows of one head lie apart, so the processor would not do that by itself.
static void read_chunk(const Attention& a, const void* store_, const Block& b, int64_t from, int64_t count, int64_t stride, Chunk& chunk) {
    const int64_t dim = a.m.head_dim, bytes = dim * (a.m.kv_kind == BF16 ? 2 : 4);
    for (int64_t j = 0; j < CHUNK && from + CHUNK + j < b.span->length; j++) {
        const char* next = (const char*)store_ + (slot_of(*b.span, from + CHUNK + j) * a.m.kv_heads + b.head) * bytes;
        for (int64_t i = 0; i < bytes; i += LINE) prefetch(next + i);
    }
    for (int64_t j = 0; j < (count + 3) / 4 * 4; j++) {
        float* to = chunk.widened + j * stride;
        chunk.row[j] = to;
        int64_t i = 0;
        if (j < count) {
            const int64_t at = (slot_of(*b.span, from + j) * a.m.kv_heads + b.head) * dim;
            if (a.m.kv_kind == BF16) {
                const uint16_t* source = (const uint16_t*)store_ + at;
                for (; i + LANES <= dim; i += LANES) store(to + i, (vf)(widen_bf16(source + i) << 16));
                for (; i < dim; i++) to[i] = widen(source[i]);
            } else if (dim == stride) {
                chunk.row[j] = (const float*)store_ + at;
                continue;
            } else {
                memcpy(to, (const float*)store_ + at, dim * sizeof(float));
                i = dim;
            }
        }
        for (; i < stride; i++) to[i] = 0;
    }
}

// H queries [stride] times `count` keys: scores [H][CHUNK], -inf behind them.
template <int H>
INLINE void score(const float* q, const Chunk& keys, int64_t stride, int64_t count, float scale, float* out) {
    for (int64_t j = 0; j < CHUNK; j += 4) {
        vf dots[H][4] = {};
        if (j < count)
            for (int64_t d = 0; d < stride; d += LANES) {
                vf k[4];
                UNROLL
                for (int i = 0; i < 4; i++) k[i] = load(keys.row[j + i] + d);
                UNROLL
                for (int h = 0; h < H; h++) {
                    const vf x = load(q + h * stride + d);
                    UNROLL
                    for (int i = 0; i < 4; i++) dots[h][i] = fma(x, k[i], dots[h][i]);
                }
            }
        UNROLL
        for (int h = 0; h < H; h++) sum_four(dots[h], scale, (int)(count - j), out + h * CHUNK + j);
    }
}

// V vectors of the values, from `d` on, weighted for H queries.
template <int H, int V>
INLINE void mix(const float* weights, const Chunk& values, int64_t count, int64_t d, int64_t size, float* states) {
    vf mixed[H][V] = {};
    for (int64_t j = 0; j < count; j++) {
        vf w[H];
        UNROLL
        for (int h = 0; h < H; h++) w[h] = all(weights[h * CHUNK + j]);
        UNROLL
        for (int v = 0; v < V; v++) {
            const vf value = load(values.row[j] + d + v * LANES);
            UNROLL
            for (int h = 0; h < H; h++) mixed[h][v] = fma(w[h], value, mixed[h][v]);
        }
    }
    UNROLL
    for (int h = 0; h < H; h++)
        UNROLL
        for (int v = 0; v < V; v++) store(states + h * size + d + v * LANES, mixed[h][v]);
}

// The states [H][size] of one chunk for H queries.
template <int H>
static void attend_chunk(const float* q, const Chunk& keys, const Chunk& values, int64_t stride, int64_t count, float scale, float* states) {
    const int64_t size = stride + LANES;
    alignas(32) float weights[H * CHUNK];
    score<H>(q, keys, stride, count, scale, weights);
    for (int h = 0; h < H; h++) {
        float *w = weights + h * CHUNK, *state = states + h * size + stride;
        vf top = all(-INFINITY), total = {};
        for (int j = 0; j < CHUNK; j += LANES) top = biggest(load(w + j), top);
        state[0] = max_of(top);
        for (int j = 0; j < CHUNK; j += LANES) {
            const vf each = exponential(load(w + j) - state[0]);
            store(w + j, each);
            total += each;
        }
        state[1] = sum(total);
    }
    int64_t d = 0;
    for (; d + 4 * LANES <= stride; d += 4 * LANES) mix<H, 4>(weights, values, count, d, size, states);
    for (; d < stride; d += LANES) mix<H, 1>(weights, values, count, d, size, states);
}

// Put what later keys say behind what those before them said.
INLINE void combine(float* so_far, const float* later, int64_t stride) {
    const float top = so_far[stride] > later[stride] ? so_far[stride] : later[stride];
    const vf scales = exponential((vf){so_far[stride] - top, later[stride] - top});
    const vf old = all(scales[0]), fresh = all(scales[1]);
    for (int64_t d = 0; d < stride; d += LANES) store(so_far + d, fma(load(later + d), fresh, load(so_far + d) * old));
    so_far[stride] = top;
    so_far[stride + 1] = std::fmaf(later[stride + 1], scales[1], so_far[stride + 1] * scales[0]);
}

INLINE void put(float* so_far, const float* later, bool first, int64_t stride) {
    if (first)
        memcpy(so_far, later, (stride + LANES) * sizeof(float));
    else
        combine(so_far, later, stride);
}

// Whether a group of what attention gives has numbers of two heads: then it becomes integers behind all of them.
INLINE bool heads_split_groups(const Model& m) { return m.head_dim % GROUP; }

INLINE void write_out(const Attention& a, const Block& b, int64_t query, const float* state, int64_t stride) {
    const int64_t group = a.m.heads / a.m.kv_heads, dim = a.m.head_dim;
    const int64_t row = b.span->first_row + b.first + query / group, head = b.head * group + query % group;
    float* out = a.out.x + row * a.out.stride + head * dim;
    for (int64_t d = 0; d < dim; d++) out[d] = state[d] / state[stride + 1];
    if (!heads_split_groups(a.m)) quantise(a.m.layer[a.layer].out, a.out, row, head * dim, head * dim + dim);
}

// One piece of a block: states [query][size] of the queries that see it.
static void attend_piece(const Attention& a, const Block& b, int64_t piece, float* states) {
    const int64_t dim = a.m.head_dim, stride = ceil_div(dim, LANES) * LANES, size = stride + LANES, group = a.m.heads / a.m.kv_heads;
    alignas(64) float q[HEADS * MAX_HEAD_DIM], fresh[HEADS * (MAX_HEAD_DIM + LANES)];
    Chunk keys, values;
    memset(q, 0, HEADS * stride * sizeof(float));
    const int64_t last = b.position(b.rows - 1) + 1;
    for (int64_t c = 0; c < PIECE; c++) {
        const int64_t first = (piece * PIECE + c) * CHUNK, count = last - first < CHUNK ? last - first : CHUNK;
        if (count <= 0) break;
        read_chunk(a, a.pass.keys[a.layer], b, first, count, stride, keys);
        read_chunk(a, a.pass.values[a.layer], b, first, count, stride, values);
        for (int64_t r = 0; r < b.rows; r++) {
            const int64_t ahead = b.position(r) + 1 - first, seen = ahead < count ? ahead : count;  // keys that the row may look at
            if (seen <= 0) continue;
            const float* row = a.queries + (b.span->first_row + b.first + r) * a.query_stride + b.head * group * dim;
            for (int64_t h = 0; h < group; h += HEADS) {
                const int64_t n = group - h < HEADS ? group - h : HEADS;
                for (int64_t i = 0; i < n; i++) memcpy(q + i * stride, row + (h + i) * dim, dim * sizeof(float));
                switch (n) {
                    case 1: attend_chunk<1>(q, keys, values, stride, seen, a.m.scale, fresh); break;
                    case 2: attend_chunk<2>(q, keys, values, stride, seen, a.m.scale, fresh); break;
                    case 3: attend_chunk<3>(q, keys, values, stride, seen, a.m.scale, fresh); break;
                }
                for (int64_t i = 0; i < n; i++) put(states + (r * group + h + i) * size, fresh + i * size, c == 0, stride);
            }
        }
    }
}

// Each block of rows under each head of keys, in order, with the number of its first piece of work and where its states lie.
template <typename F>
INLINE void blocks_of(const Attention& a, bool by_piece, F each) {
    const int64_t group = a.m.heads / a.m.kv_heads, size = state_size(a.m.head_dim);
    int64_t work = 0;
    float* states = a.parts;
    for (int64_t s = 0; s < a.pass.spans; s++) {
        const Span& span = a.pass.span[s];
        for (int64_t first = 0; first < span.rows; first += ROW_BLOCK)
            for (int64_t head = 0; head < a.m.kv_heads; head++) {
                const Block b = {&span, first, span.rows - first < ROW_BLOCK ? span.rows - first : ROW_BLOCK, head};
                const int64_t count = by_piece ? b.pieces() : 1;
                each(b, work, count, states);
                work += count;
                states += (a.shared ? b.pieces() : 2) * b.rows * group * size;
            }
    }
}

// Few rows over many keys: the pieces of a block are shared between threads, then combined. Else a block stays with one thread, which
// combines as it goes. The sums are the same.
static void attend(Team& team, const Attention& a) {
    const int64_t group = a.m.heads / a.m.kv_heads, size = state_size(a.m.head_dim), stride = size - LANES;
    int64_t mine = team.grab();
    blocks_of(a, a.shared, [&](const Block& b, int64_t work, int64_t count, float* states) {
        const int64_t queries = b.rows * group;
        for (; mine < work + count; mine = team.grab()) {
            if (a.shared) {
                attend_piece(a, b, mine - work, states + (mine - work) * queries * size);
                continue;
            }
            float* fresh = states + queries * size;
            for (int64_t p = 0; p < b.pieces(); p++) {
                attend_piece(a, b, p, fresh);
                for (int64_t query = 0; query < queries; query++)
                    if (p < b.pieces(query / group)) put(states + query * size, fresh + query * size, p == 0, stride);
            }
            for (int64_t query = 0; query < queries; query++) write_out(a, b, query, states + query * size, stride);
        }
    });
    team.barrier();
    if (!a.shared) return;
    mine = team.grab();
    blocks_of(a, false, [&](const Block& b, int64_t work, int64_t, float* states) {
        if (mine != work) return;
        const int64_t queries = b.rows * group;
        for (int64_t query = 0; query < queries; query++) {
            float* so_far = states + query * size;
            for (int64_t p = 1; p < b.pieces(query / group); p++) combine(so_far, states + (p * queries + query) * size, stride);
            write_out(a, b, query, so_far, stride);
        }
        mine = team.grab();
    });
    team.barrier();
}

}  // namespace
