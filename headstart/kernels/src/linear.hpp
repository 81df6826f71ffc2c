// Products with packed weights. Each output is one chain of sums over k = 0, 1, 2, ... whatever the number of rows and whichever tile it
// is in: so a row's numbers are the same bits in a pass of any width.
#pragma once
#include "simd.hpp"

namespace {

constexpr int PANEL_VECTORS = PANEL / LANES;
constexpr int MAX_TILE_ROWS = 6;
constexpr int TILE_PANELS = ACCUMULATORS / (MAX_TILE_ROWS * PANEL_VECTORS);  // side by side in the highest tile
constexpr int ITEM_PANELS = 4;                                              // that a thread takes at a time
constexpr int LINE = 64;                                                    // bytes that memory gives at once

// The left side of a product: rows of floats, and for integer weights the same in 16 bits, or in 8 for weights of 4, with a scale per
// group. Columns behind the last one are zeros up to a whole group.
struct Operand {
    float* x;
    int64_t stride;  // of a row of x and q
    char* q;
    float *scale, *total;  // [row][stride / GROUP]: value = scale * q; the sum of the group's values
};

INLINE int64_t operand_bytes(int64_t rows, int64_t columns) {
    int64_t stride = padded(columns);
    return rows * (stride * 6 + stride / GROUP * 8) + 256;
}

INLINE Operand operand_at(char* memory, int64_t rows, int64_t columns) {
    Operand a;
    a.stride = padded(columns);
    a.x = (float*)memory;
    a.q = (char*)(a.x + rows * a.stride);
    a.scale = (float*)(a.q + rows * a.stride * 2);
    a.total = a.scale + rows * (a.stride / GROUP);
    return a;
}

// Of an activation beside weights of a kind: its bytes, and the integer that the largest of a group becomes.
constexpr int ACTIVATION_BYTES[] = {0, 0, 2, 1};
constexpr int LARGEST[] = {0, 0, 32767, 127};

// The integers of one group. In 16 bits their error is 2^-16 of the largest, below that of fp32 sums of weights that have 8 bits.
INLINE void quantise_group(const Operand& a, int32_t kind, int64_t row, int64_t group) {
    const float* x = a.x + row * a.stride + group * GROUP;
    char* q = a.q + (row * a.stride + group * GROUP) * ACTIVATION_BYTES[kind];
    vf top = {}, odd = {};  // odd: 0, or NaN where a number is not finite
    for (int i = 0; i < GROUP; i += LANES) {
        top = biggest(top, (vf)((vi)load(x + i) & 0x7fffffff));
        odd += load(x + i) - load(x + i);
    }
    const float largest = max_of(top), scale = largest / LARGEST[kind];
    const float inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;
    vi total = {};
    for (int i = 0; i < GROUP; i += LANES) {
        const vi n = round_up(load(x + i) * inverse);
        total += n;
        if (kind == INT4)
            store_s8(q + i, n);
        else
            store_s16(q + 2 * i, n);
    }
    const int64_t at = row * (a.stride / GROUP) + group;
    // Numbers that are not finite have no integers: the scale carries them into every output of the row.
    a.scale[at] = scale + sum(odd);
    a.total[at] = a.scale[at] * sum(to_float(total));
}

INLINE bool wants_integers(const Matrix& m) { return m.kind >= INT8; }

// The integers of columns [from, to) of a row whose floats are ready, if the matrix needs them. `from` begins a group.
INLINE void quantise(const Matrix& m, const Operand& a, int64_t row, int64_t from, int64_t to) {
    if (!wants_integers(m)) return;
    for (int64_t g = from / GROUP; g < ceil_div(to, GROUP); g++) quantise_group(a, m.kind, row, g);
}

// The same of whole rows, by all threads. Ends with a barrier if it does anything.
static void prepare(Team& team, const Matrix& m, const Operand& a, int64_t rows) {
    if (!wants_integers(m)) return;
    constexpr int64_t piece = 8 * GROUP;
    const int64_t pieces = ceil_div(m.columns, piece);
    for (int64_t i; (i = team.grab()) < rows * pieces;) {
        const int64_t from = i % pieces * piece;
        quantise(m, a, i / pieces, from, from + piece < m.columns ? from + piece : m.columns);
    }
    team.barrier();
}

INLINE int64_t panel_bytes(const Matrix& m) {
    return (int64_t)m.columns * PANEL * (m.kind == F32 ? 4 : m.kind == BF16 ? 2 : 1) / (m.kind == INT4 ? 2 : 1);
}

struct Output {
    float* y;
    int64_t stride;
    bool add;  // to what is there
};

// What this thread will read next, fetched from memory while it computes: a line or less with every line of weights that the work
// reads. Panels may be fetched side by side, as they will be read: more of memory is under way at once.
struct Ahead {
    const char* at = nullptr;  // null: nothing
    int64_t step = 0;          // bytes for each line of the work
    int64_t mask = 0;          // panels side by side, less one
    int64_t panel = 0;         // bytes of one

    INLINE_METHOD void fetch(int64_t line, int lines) const {
        if (!at) return;
        UNROLL
        for (int64_t l = line; l < line + lines; l++) prefetch(at + (l & mask) * panel + l * step);
    }
};

// Sums of one row and panel, which may change, to where they belong.
static void write_panel(const Matrix& m, float* values, int64_t panel, const Output& out, int64_t row) {
    const int64_t column = panel * PANEL;
    const int n = m.rows - column < PANEL ? (int)(m.rows - column) : PANEL;
    float* y = out.y + row * out.stride + column;
    if (m.bias)
        for (int c = 0; c < n; c++) values[c] += m.bias[column + c];
    if (out.add)
        for (int c = 0; c < n; c++) values[c] += y[c];
    if (n == PANEL)
        memcpy(y, values, PANEL * sizeof(float));
    else
        memcpy(y, values, n * sizeof(float));
}

template <int R, int P>
INLINE void finish(const Matrix& m, const vf (&sums)[R][P * PANEL_VECTORS], int64_t panel, const Output& out, int64_t row) {
    alignas(64) float all_values[R][P][PANEL];
    UNROLL
    for (int r = 0; r < R; r++)
        UNROLL
        for (int v = 0; v < P * PANEL_VECTORS; v++) store(all_values[r][0] + v * LANES, sums[r][v]);
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) write_panel(m, all_values[r][p], panel + p, out, row + r);
}

// R rows by P panels of a weight in fp32 or bf16.
template <int KIND, int R, int P>
static void tile_float(const Matrix& m, const Operand& a, int64_t row, int64_t panel, const Ahead& from_here, const Output& out) {
    const Ahead ahead = from_here;
    constexpr int V = P * PANEL_VECTORS;
    const int64_t bytes = panel_bytes(m);
    constexpr int lines = P * (KIND == BF16 ? 1 : 2);  // of weights for each pair of inputs
    const char* w = (const char*)m.codes + panel * bytes;
    const float* x = a.x + row * a.stride;
    vf sums[R][V] = {};
    for (int64_t k = 0; k < m.columns; k += 2) {
        const char* at = w + k * (KIND == BF16 ? 2 : 4) * PANEL;
        ahead.fetch(k / 2 * lines, lines);
        vf b[V];
        UNROLL
        for (int half = 0; half < 2; half++) {
            UNROLL
            for (int v = 0; v < V; v++) {
                const char* lane = at + v / PANEL_VECTORS * bytes + v % PANEL_VECTORS * 4 * LANES;
                if (KIND == F32)
                    b[v] = load((const float*)(lane + half * 4 * PANEL));
                else
                    b[v] = half ? high_bf16(lane) : low_bf16(lane);
            }
            UNROLL
            for (int r = 0; r < R; r++) {
                const vf xs = spread(x + r * a.stride + k + half);
                UNROLL
                for (int v = 0; v < V; v++) fma_into(sums[r][v], b[v], xs);
            }
        }
    }
    finish<R, P>(m, sums, panel, out, row);
}

// Exact sums over one group: V vectors of outputs for R rows. Not inlined, or the compiler would keep some of them in memory.
template <int KIND, int R, int V>
__attribute__((noinline)) static void group_sums(const char* w, int64_t panel_bytes, const char* q, int64_t row_bytes, vi (*sums)[V]) {
    constexpr int K = 8, INPUTS = 4 / ACTIVATION_BYTES[KIND];  // inputs of a turn of the loop, and of a product
    vi whole[R][V] = {};
    for (int k = 0; k < GROUP; k += K, w += K * PANEL / (KIND == INT4 ? 2 : 1), q += K * ACTIVATION_BYTES[KIND]) {
        UNROLL
        for (int i = 0; i < K / INPUTS; i++) {
            vi b[V];
            UNROLL
            for (int v = 0; v < V; v++) {
                const char* lane = w + v / PANEL_VECTORS * panel_bytes + v % PANEL_VECTORS * INPUTS * LANES;
                if (KIND == INT8)
                    b[v] = widen_s8(lane + i * INPUTS * PANEL);
                else
                    b[v] = i ? high_nibbles(lane) : low_nibbles(lane);
            }
            UNROLL
            for (int r = 0; r < R; r++) {
                const vi xs = spread_32(q + r * row_bytes + i * 4);
                UNROLL
                for (int v = 0; v < V; v++) KIND == INT8 ? add_pairs(whole[r][v], b[v], xs) : add_quads(whole[r][v], b[v], xs);
            }
        }
    }
    UNROLL
    for (int r = 0; r < R; r++)
        UNROLL
        for (int v = 0; v < V; v++) sums[r][v] = KIND == INT8 ? whole[r][v] : sums_of_pairs(whole[r][v]);
}

// What the processor itself would fetch late: the scales of these panels, short runs beside their codes, and the first lines of the next.
template <int P>
INLINE void fetch_early(const Matrix& m, int64_t panel) {
    constexpr int FIRST = 4;
    UNROLL
    for (int i = 0; i < P * FIRST; i++) prefetch((const char*)m.codes + (panel + P + i / FIRST) * panel_bytes(m) + i % FIRST * LINE);
    const int64_t bytes = (int64_t)m.groups * PANEL * 2;
    for (int64_t at = panel * bytes; at < (panel + P) * bytes; at += LINE) {
        prefetch((const char*)m.scale + at);
        if (m.minimum) prefetch((const char*)m.minimum + at);
    }
}

// The same of codes in 8 or 4 bits: exact integer sums within a group, then scaled.
template <int KIND, int R, int P>
static void tile_integer(const Matrix& m, const Operand& a, int64_t row, int64_t panel, const Ahead& from_here, const Output& out) {
    const Ahead ahead = from_here;
    constexpr int V = P * PANEL_VECTORS;
    constexpr int codes = GROUP * PANEL / (KIND == INT4 ? 2 : 1), lines = P * codes / LINE;
    const int64_t bytes = panel_bytes(m), groups = a.stride / GROUP, row_bytes = a.stride * ACTIVATION_BYTES[KIND];
    const char* w = (const char*)m.codes + panel * bytes;
    const char* q = a.q + row * row_bytes;
    vf sums[R][V] = {};
    fetch_early<P>(m, panel);
    for (int64_t g = 0; g < m.columns / GROUP; g++, w += codes, q += GROUP * ACTIVATION_BYTES[KIND]) {
        vi whole[R][V];
        ahead.fetch(g * lines, lines);
        group_sums<KIND, R, V>(w, bytes, q, row_bytes, whole);
        UNROLL
        for (int v = 0; v < V; v++) {
            const int64_t at = ((panel + v / PANEL_VECTORS) * m.groups + g) * PANEL + v % PANEL_VECTORS * LANES;
            const vf scale = m.groups ? widen_fp16((const uint16_t*)m.scale + at) : (vf){};
            const vf minimum = m.minimum ? widen_fp16((const uint16_t*)m.minimum + at) : (vf){};
            UNROLL
            for (int r = 0; r < R; r++) {
                const int64_t of = (row + r) * groups + g;
                sums[r][v] = fma(to_float(whole[r][v]), m.groups ? scale * a.scale[of] : all(a.scale[of]), sums[r][v]);
                if (m.minimum) sums[r][v] = fma(minimum, all(a.total[of]), sums[r][v]);
            }
        }
    }
    if (m.groups == 0)
        UNROLL
        for (int v = 0; v < V; v++) {
            const vf scale = load((const float*)m.scale + (panel + v / PANEL_VECTORS) * PANEL + v % PANEL_VECTORS * LANES);
            UNROLL
            for (int r = 0; r < R; r++) sums[r][v] *= scale;
        }
    finish<R, P>(m, sums, panel, out, row);
}

template <int KIND, int R, int P>
INLINE void tile(const Matrix& m, const Operand& a, int64_t row, int64_t panel, const Ahead& ahead, const Output& out) {
    if constexpr (KIND >= INT8)
        tile_integer<KIND, R, P>(m, a, row, panel, ahead, out);
    else
        tile_float<KIND, R, P>(m, a, row, panel, ahead, out);
}

// R rows by panels [first, last): as many side by side as there are registers for their sums.
template <int KIND, int R>
static void strip(const Matrix& m, const Operand& a, int64_t row, int64_t first, int64_t last, Ahead& ahead, const Output& out) {
    constexpr int SUMS = KIND >= INT8 ? 8 : ACCUMULATORS;  // integers widen into registers of their own
    constexpr int FIT = SUMS / (R * PANEL_VECTORS), P = FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
    const int64_t fetched = panel_bytes(m) / LINE * ahead.step;  // with every panel
    for (int64_t p = first; p < last;) {
        const int64_t n = p + P <= last ? P : 1;
        n == P ? tile<KIND, R, P>(m, a, row, p, ahead, out) : tile<KIND, R, 1>(m, a, row, p, ahead, out);
        if (ahead.at) ahead.at += fetched * n;
        p += n;
    }
}

// All rows by panels [first, last), a tile of rows after the other.
template <int KIND>
static void tiles(const Matrix& m, const Operand& a, int64_t rows, int64_t first, int64_t last, Ahead& ahead, const Output& out) {
    const int64_t count = ceil_div(rows, MAX_TILE_ROWS);
    for (int64_t t = 0; t < count; t++) {
        const int64_t row = rows * t / count, n = rows * (t + 1) / count - row;
        switch (n) {
#define CASE(R) \
    case R: strip<KIND, R>(m, a, row, first, last, ahead, out); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
        }
    }
}

// The same, and fetch what this thread will do next, panels from `next` on. One tile of rows takes all its panels in turn; with
// several tiles the panels of one stay in the cache until the last one has read them, and those behind them are fetched meanwhile.
template <int KIND>
static void item(const Matrix& m, const Operand& a, int64_t rows, int64_t first, int64_t last, int64_t next, const Output& out) {
    const char* codes = (const char*)m.codes;
    const int64_t bytes = panel_bytes(m), panels = ceil_div(m.rows, PANEL);
    if (rows <= MAX_TILE_ROWS) {
        Ahead ahead;
        if (rows > 1 && next + ITEM_PANELS <= panels) ahead = {codes + next * bytes, LINE / ITEM_PANELS, ITEM_PANELS - 1, bytes};
        return tiles<KIND>(m, a, rows, first, last, ahead, out);
    }
    for (int64_t p = first, end; p < last; p = end) {
        end = p + TILE_PANELS < last ? p + TILE_PANELS : last;
        Ahead ahead = {codes + (end < last ? end : next < panels ? next : p) * bytes, LINE / ceil_div(rows, MAX_TILE_ROWS)};
        tiles<KIND>(m, a, rows, p, end, ahead, out);
    }
}

// Panels [first, last) of each item that this thread takes, and where its next one begins. Ends with a barrier.
template <typename F>
INLINE void items(Team& team, const Matrix& m, F each) {
    const int64_t panels = ceil_div(m.rows, PANEL);
    int64_t next;
    for (int64_t i = team.grab() * ITEM_PANELS; i < panels; i = next) {
        next = team.grab() * ITEM_PANELS;
        each(i, i + ITEM_PANELS < panels ? i + ITEM_PANELS : panels, next);
    }
    team.barrier();
}

#ifdef AMX
static void tile_product(Team& team, const Matrix& m, const Operand& a, int64_t rows, const Output& out);  // amx.hpp
#endif

// y = x W^T + b, or added to y. The operand is prepared. Ends with a barrier.
static void product(Team& team, const Matrix& m, const Operand& a, int64_t rows, const Output& out) {
#ifdef AMX
    if (m.kind == BF16) return tile_product(team, m, a, rows, out);
#endif
    items(team, m, [&](int64_t first, int64_t last, int64_t next) {
        switch (m.kind) {
            case F32: item<F32>(m, a, rows, first, last, next, out); break;
#ifndef AMX
            case BF16: item<BF16>(m, a, rows, first, last, next, out); break;
#endif
            case INT8: item<INT8>(m, a, rows, first, last, next, out); break;
            case INT4: item<INT4>(m, a, rows, first, last, next, out); break;
        }
    });
}

// Row `n` of a weight as floats: the embedding of a token.
static void row_of(const Matrix& m, int64_t n, float* out, int64_t columns) {
    const char* panel = (const char*)m.codes + n / PANEL * panel_bytes(m);
    const int64_t c = n % PANEL, groups = m.groups;
    for (int64_t k = 0; k < columns; k++) {
        const int64_t pair = (k / 2 * PANEL + c) * 2 + k % 2;
        if (m.kind == F32) {
            out[k] = ((const float*)panel)[k * PANEL + c];
        } else if (m.kind == BF16) {
            out[k] = widen(((const uint16_t*)panel)[pair]);
        } else {
            const int64_t at = groups == 0 ? n : (n / PANEL * groups + k / GROUP) * PANEL + c;
            const float scale = groups == 0 ? ((const float*)m.scale)[at] : _cvtsh_ss(((const uint16_t*)m.scale)[at]);
            const int byte = ((const uint8_t*)panel)[(k / 8 * PANEL + c) * 4 + k % 4];
            const int code = m.kind == INT8 ? ((const int8_t*)panel)[pair] : k % 8 < 4 ? byte & 15 : byte >> 4;
            out[k] = scale * (float)code + (m.minimum ? _cvtsh_ss(((const uint16_t*)m.minimum)[at]) : 0.0f);
        }
    }
}

}  // namespace
