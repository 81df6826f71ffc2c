// Attention of rows over the keys of their own sequence, read through its slots. Keys are taken in chunks of fixed logical positions
// [0, 32), [32, 64), ...; each chunk gives a maximum, a sum and a weighted value, and chunks are combined in order. So a row's result
// depends on nothing but its own position, query and keys: neither on other rows, nor on how blocks lie or work is shared.
#pragma once
#include "linear.hpp"

namespace {

constexpr int CHUNK = 32;     // keys
constexpr int ROW_BLOCK = 8;  // rows of a sequence that share the reading of keys
constexpr int PIECE_CHUNKS = 4;  // chunks that a thread takes at a time, where a block is shared
constexpr int MAX_HEAD_DIM = 256;

// What a chunk, or all chunks so far, say for one query: weighted values [stride], their largest score and the sum of weights.
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
    int64_t chunks() const { return position(rows - 1) / CHUNK + 1; }
};

// Keys or values of a chunk as floats [CHUNK][stride], zeros behind head_dim.
static void widen_chunk(const Attention& a, const void* store_, const Block& b, int64_t from, int64_t count, float* out, int64_t stride) {
    const int64_t dim = a.m.head_dim;
    for (int64_t j = 0; j < count; j++) {
        const int64_t slot = b.span->slots ? b.span->slots[from + j] : b.span->base + from + j;
        const int64_t at = (slot * a.m.kv_heads + b.head) * dim;
        float* to = out + j * stride;
        int64_t i = 0;
        if (a.m.kv_kind == BF16) {
            const uint16_t* source = (const uint16_t*)store_ + at;
            for (; i + LANES <= dim; i += LANES) store(to + i, (vf)(widen_bf16(source + i) << 16));
            for (; i < dim; i++) to[i] = widen(source[i]);
        } else {
            memcpy(to, (const float*)store_ + at, dim * sizeof(float));
            i = dim;
        }
        for (; i < stride; i++) to[i] = 0;
    }
}

// Scores of one query [stride] over `count` keys; -inf behind them, to a whole vector.
INLINE void score(const float* q, const float* keys, int64_t stride, int64_t count, float scale, float* out) {
    for (int64_t j = 0; j < count; j += LANES) {
        vf s = all(-INFINITY);
        for (int64_t i = 0; i < LANES && j + i < count; i++) {
            vf dot = {};
            for (int64_t d = 0; d < stride; d += LANES) dot = fma(load(q + d), load(keys + (j + i) * stride + d), dot);
            s[i] = sum(dot) * scale;
        }
        store(out + j, s);
    }
}

// The state of one chunk for one query.
static void attend_chunk(const float* q, const float* keys, const float* values, int64_t stride, int64_t count, float scale, float* state) {
    float weights[CHUNK];
    score(q, keys, stride, count, scale, weights);
    vf top = all(-INFINITY);
    for (int64_t j = 0; j < count; j += LANES) top = biggest(load(weights + j), top);
    const float largest = max_of(top);
    vf total = {};
    for (int64_t j = 0; j < count; j += LANES) {
        const vf w = exponential(load(weights + j) - largest);
        store(weights + j, w);
        total += w;
    }
    for (int64_t d = 0; d < stride; d += LANES) {
        vf mixed = {};
        for (int64_t j = 0; j < count; j++) mixed = fma(all(weights[j]), load(values + j * stride + d), mixed);
        store(state + d, mixed);
    }
    state[stride] = largest;
    state[stride + 1] = sum(total);
}

// Put a chunk behind those before it.
INLINE void combine(float* so_far, const float* chunk, int64_t stride) {
    const float top = so_far[stride] > chunk[stride] ? so_far[stride] : chunk[stride];
    const vf scales = exponential((vf){so_far[stride] - top, chunk[stride] - top});
    const vf old = all(scales[0]), fresh = all(scales[1]);
    for (int64_t d = 0; d < stride; d += LANES) store(so_far + d, fma(load(chunk + d), fresh, load(so_far + d) * old));
    so_far[stride] = top;
    so_far[stride + 1] = std::fmaf(chunk[stride + 1], scales[1], so_far[stride + 1] * scales[0]);
}

INLINE void write_out(const Attention& a, const Block& b, int64_t query, const float* state, int64_t stride) {
    const int64_t group = a.m.heads / a.m.kv_heads, dim = a.m.head_dim;
    const int64_t row = b.span->first_row + b.first + query / group, head = b.head * group + query % group;
    float* out = a.out.x + row * a.out.stride + head * dim;
    for (int64_t d = 0; d < dim; d++) out[d] = state[d] / state[stride + 1];
}

// Chunks [from, to) of a block. Each query's chunks go to `each(query, chunk, state)` in order.
template <typename F>
INLINE void chunks_of(const Attention& a, const Block& b, int64_t from, int64_t to, F each) {
    const int64_t dim = a.m.head_dim, stride = ceil_div(dim, LANES) * LANES, group = a.m.heads / a.m.kv_heads;
    alignas(64) float keys[CHUNK * MAX_HEAD_DIM], values[CHUNK * MAX_HEAD_DIM], q[MAX_HEAD_DIM], state[MAX_HEAD_DIM + LANES];
    for (int64_t c = from; c < to; c++) {
        const int64_t first = c * CHUNK, last = b.position(b.rows - 1) + 1, count = last - first < CHUNK ? last - first : CHUNK;
        widen_chunk(a, a.pass.keys[a.layer], b, first, count, keys, stride);
        widen_chunk(a, a.pass.values[a.layer], b, first, count, values, stride);
        for (int64_t r = 0; r < b.rows; r++) {
            const int64_t seen = b.position(r) + 1 - first;  // keys of this chunk that the row may look at
            if (seen <= 0) continue;
            for (int64_t h = 0; h < group; h++) {
                memset(q, 0, stride * sizeof(float));
                memcpy(q, a.queries + (b.span->first_row + b.first + r) * a.query_stride + (b.head * group + h) * dim, dim * sizeof(float));
                attend_chunk(q, keys, values, stride, seen < count ? seen : count, a.m.scale, state);
                each(r * group + h, c, state);
            }
        }
    }
}

// Each block of rows under each head of keys, in order, with the number of its first piece of work and where its states lie.
template <typename F>
INLINE void blocks_of(const Attention& a, int64_t piece_chunks, F each) {
    const int64_t group = a.m.heads / a.m.kv_heads, size = state_size(a.m.head_dim);
    int64_t piece = 0;
    float* states = a.parts;
    for (int64_t s = 0; s < a.pass.spans; s++) {
        const Span& span = a.pass.span[s];
        for (int64_t first = 0; first < span.rows; first += ROW_BLOCK)
            for (int64_t head = 0; head < a.m.kv_heads; head++) {
                const Block b = {&span, first, span.rows - first < ROW_BLOCK ? span.rows - first : ROW_BLOCK, head};
                const int64_t pieces = piece_chunks ? ceil_div(b.chunks(), piece_chunks) : 1;
                each(b, piece, pieces, states);
                piece += pieces;
                states += (a.shared ? b.chunks() : 1) * b.rows * group * size;
            }
    }
}

// Few rows over many keys: the chunks of a block are shared between threads, then combined. Else a block stays with one thread, which
// combines as it goes. The sums are the same.
static void attend(Team& team, const Attention& a) {
    const int64_t group = a.m.heads / a.m.kv_heads, size = state_size(a.m.head_dim), stride = size - LANES;
    int64_t mine = team.grab();
    blocks_of(a, a.shared ? PIECE_CHUNKS : 0, [&](const Block& b, int64_t piece, int64_t pieces, float* states) {
        const int64_t queries = b.rows * group;
        for (; mine < piece + pieces; mine = team.grab()) {
            const int64_t from = (mine - piece) * PIECE_CHUNKS, to = from + PIECE_CHUNKS < b.chunks() ? from + PIECE_CHUNKS : b.chunks();
            if (a.shared) {
                chunks_of(a, b, from, to, [&](int64_t query, int64_t c, const float* state) {
                    memcpy(states + (c * queries + query) * size, state, size * sizeof(float));
                });
                continue;
            }
            chunks_of(a, b, 0, b.chunks(), [&](int64_t query, int64_t c, const float* state) {
                float* so_far = states + query * size;
                if (c == 0)
                    memcpy(so_far, state, size * sizeof(float));
                else
                    combine(so_far, state, stride);
            });
            for (int64_t query = 0; query < queries; query++) write_out(a, b, query, states + query * size, stride);
        }
    });
    team.barrier();
    if (!a.shared) return;
    mine = team.grab();
    blocks_of(a, 0, [&](const Block& b, int64_t piece, int64_t, float* states) {
        if (mine != piece) return;
        const int64_t queries = b.rows * group;
        for (int64_t query = 0; query < queries; query++) {
            float* so_far = states + query * size;
            for (int64_t c = 1; c <= b.position(query / group) / CHUNK; c++) combine(so_far, states + (c * queries + query) * size, stride);
            write_out(a, b, query, so_far, stride);
        }
        mine = team.grab();
    });
    team.barrier();
}

}  // namespace
