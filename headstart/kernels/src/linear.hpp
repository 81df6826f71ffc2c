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

// The left side of a product: rows of floats, and the same in 16 bits with a scale per group for integer weights.
// Columns behind the last one are zeros up to a whole group.
struct Operand {
    float* x;
    int64_t stride;  // of a row of x and q
    int16_t* q;
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
    a.q = (int16_t*)(a.x + rows * a.stride);
    a.scale = (float*)(a.q + rows * a.stride);
    a.total = a.scale + rows * (a.stride / GROUP);
    return a;
}

// Sixteen-bit integers for one group: the largest becomes 32767. Their error is 2^-16 of the largest, below that of fp32 sums of
// weights that have 8 bits.
INLINE void quantise_group(const Operand& a, int64_t row, int64_t group) {
    const float* x = a.x + row * a.stride + group * GROUP;
    int16_t* q = a.q + row * a.stride + group * GROUP;
    vf top = {}, odd = {};  // odd: 0, or NaN where a number is not finite
    for (int i = 0; i < GROUP; i += LANES) {
        top = biggest(top, (vf)((vi)load(x + i) & 0x7fffffff));
        odd += load(x + i) - load(x + i);
    }
    const float largest = max_of(top), scale = largest / 32767.0f;
    const float inverse = scale > 1e-38f ? 1.0f / scale : 0.0f;
    int32_t total = 0;
    for (int i = 0; i < GROUP; i += LANES) {
        vi n = round_up(load(x + i) * inverse);
        for (int j = 0; j < LANES; j++) {
            q[i + j] = (int16_t)n[j];
            total += n[j];
        }
    }
    const int64_t at = row * (a.stride / GROUP) + group;
    // Numbers that are not finite have no integers: the scale carries them into every output of the row.
    a.scale[at] = scale + sum(odd);
    a.total[at] = a.scale[at] * (float)total;
}

INLINE bool wants_integers(const Matrix& m) { return m.kind >= INT8; }

// The integers of rows x whose floats are ready, if the matrix needs them. Ends with a barrier if it does anything.
static void prepare(Team& team, const Matrix& m, const Operand& a, int64_t rows) {
    if (!wants_integers(m)) return;
    const int64_t groups = m.columns / GROUP, pieces = ceil_div(groups, 8);
    for (int64_t i; (i = team.grab()) < rows * pieces;)
        for (int64_t g = i % pieces * 8; g < groups && g < (i % pieces + 1) * 8; g++) quantise_group(a, i / pieces, g);
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

// The same of codes in 8 or 4 bits: exact integer sums within a group, then scaled.
template <int KIND, int R, int P>
static void tile_integer(const Matrix& m, const Operand& a, int64_t row, int64_t panel, const Ahead& from_here, const Output& out) {
    const Ahead ahead = from_here;
    constexpr int V = P * PANEL_VECTORS;
    constexpr int codes = GROUP * PANEL / (KIND == INT4 ? 2 : 1), lines = P * codes / LINE;
    const int64_t bytes = panel_bytes(m), groups = a.stride / GROUP;
    const char* w = (const char*)m.codes + panel * bytes;
    const int16_t* q = a.q + row * a.stride;
    vf sums[R][V] = {};
    for (int64_t g = 0; g < m.columns / GROUP; g++, w += codes, q += GROUP) {
        vi whole[R][V] = {};
        ahead.fetch(g * lines, lines);
        for (int k = 0; k < GROUP; k += KIND == INT4 ? 4 : 2) {
            vi b[2][V];
            UNROLL
            for (int v = 0; v < V; v++) {
                const char* lane = w + v / PANEL_VECTORS * bytes + k * PANEL / (KIND == INT4 ? 2 : 1) + v % PANEL_VECTORS * 2 * LANES;
                if (KIND == INT8) {
                    b[0][v] = widen_s8(lane);
                } else {
                    const vi both = widen_u8(lane);
                    b[0][v] = both & 0x000f000f;
                    b[1][v] = high_nibbles(both);
                }
            }
            UNROLL
            for (int half = 0; half < (KIND == INT4 ? 2 : 1); half++)
                UNROLL
                for (int r = 0; r < R; r++) {
                    const vi xs = spread_pair(q + r * a.stride + k + 2 * half);
                    UNROLL
                    for (int v = 0; v < V; v++) madd_into(whole[r][v], b[half][v], xs);
                }
        }
        UNROLL
        for (int v = 0; v < V; v++) {
            const int64_t at = ((panel + v / PANEL_VECTORS) * m.groups + g) * PANEL + v % PANEL_VECTORS * LANES;
            const vf scale = m.groups == 0 ? all(1.0f) : widen_fp16((const uint16_t*)m.scale + at);
            const vf minimum = m.minimum ? widen_fp16((const uint16_t*)m.minimum + at) : (vf){};
            UNROLL
            for (int r = 0; r < R; r++) {
                const int64_t of = (row + r) * groups + g;
                sums[r][v] = fma(to_float(whole[r][v]), scale * a.scale[of], sums[r][v]);
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

// R rows by panels [first, last): as many side by side as there are registers for their sums.
template <int KIND, int R>
static void strip(const Matrix& m, const Operand& a, int64_t row, int64_t first, int64_t last, Ahead& ahead, const Output& out) {
    constexpr int FIT = ACCUMULATORS / (R * PANEL_VECTORS), P = FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
    const int64_t fetched = panel_bytes(m) / LINE * ahead.step;  // with every panel
    for (int64_t p = first; p < last;) {
        const int64_t n = p + P <= last ? P : 1;
        if constexpr (KIND >= INT8)
            n == P ? tile_integer<KIND, R, P>(m, a, row, p, ahead, out) : tile_integer<KIND, R, 1>(m, a, row, p, ahead, out);
        else
            n == P ? tile_float<KIND, R, P>(m, a, row, p, ahead, out) : tile_float<KIND, R, 1>(m, a, row, p, ahead, out);
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

// y = x W^T + b, or added to y. The operand is prepared. Ends with a barrier.
static void product(Team& team, const Matrix& m, const Operand& a, int64_t rows, const Output& out) {
    items(team, m, [&](int64_t first, int64_t last, int64_t next) {
        switch (m.kind) {
            case F32: item<F32>(m, a, rows, first, last, next, out); break;
#ifndef AMX  // amx.hpp does it
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
            const int byte = ((const uint8_t*)panel)[(k / 4 * PANEL + c) * 2 + k % 2];
            const int code = m.kind == INT8 ? ((const int8_t*)panel)[pair] : k % 4 < 2 ? byte & 15 : byte >> 4;
            out[k] = scale * (float)code + (m.minimum ? _cvtsh_ss(((const uint16_t*)m.minimum)[at]) : 0.0f);
        }
    }
}

}  // namespace
