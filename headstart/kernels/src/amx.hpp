// Products with weights in bf16 by AMX. A packed panel is a row of tiles as it lies: 16 pairs of inputs by 16 outputs. Up to 16 rows of the
// pass, rounded to bf16, go through a tile at once, so they take the time of one. A tile instruction sums each row by itself and in one
// order, so a row's numbers are the same bits in a pass of any width here too.
#pragma once
#include "linear.hpp"

namespace {

constexpr int TILE_ROWS = 16;               // of the pass
constexpr int TILE_INPUTS = 2 * TILE_ROWS;  // that one instruction takes
constexpr int TILE_BYTES = 1024;
static_assert(TILE_INPUTS == GROUP, "rows are padded to whole tiles");
static_assert(ITEM_PANELS == 4, "there are registers for the sums of four panels");

// What the tiles hold, as the processor wants to be told: 0-3 sums, 4 rows of the pass, 5-7 weights.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit Shapes(int64_t pass_rows) {
        for (int t = 0; t < 8; t++) {
            row_bytes[t] = LINE;
            rows[t] = t < 5 && pass_rows < TILE_ROWS ? pass_rows : TILE_ROWS;
        }
    }
};

// Compilers do not know that tiles are read from memory.
INLINE void settle_memory() { asm volatile("" ::: "memory"); }

// To bf16, to the nearest, ties to even; NaN stays NaN.
typedef uint16_t vh __attribute__((vector_size(2 * LANES), aligned(2)));
INLINE vh narrow(vf a) {
    const vu bits = (vu)a, odd = (vu)(a != a), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return __builtin_convertvector(((rounded & ~odd) | ((bits | 0x400000) & odd)) >> 16, vh);
}

// The rows in bf16, where the integers for other weights would stand. Ends with a barrier.
static void round_rows(Team& team, const Operand& a, int64_t rows) {
    constexpr int64_t piece = 16 * GROUP;
    const int64_t pieces = ceil_div(a.stride, piece);
    for (int64_t i; (i = team.grab()) < rows * pieces;) {
        const int64_t from = i % pieces * piece, to = from + piece < a.stride ? from + piece : a.stride, row = i / pieces * a.stride;
        for (int64_t k = from; k < to; k += LANES) *((vh*)a.q + (row + k) / LANES) = narrow(load(a.x + row + k));
    }
    team.barrier();
}

// Panels that this thread will read next, fetched from memory while it computes.
struct Coming {
    const char *at = nullptr, *end = nullptr;  // in the first of them
    int64_t apart = 0;                         // bytes from one panel to the next
    int lines = 0;                             // of each, with every step

    INLINE_METHOD void fetch() {
        for (int l = 0; l < lines && at < end; l++, at += LINE) {
            UNROLL
            for (int p = 0; p < ITEM_PANELS; p++) prefetch(at + p * apart);
        }
    }
};

// The next inputs of the rows at x, times P panels of weights, `apart` bytes from one to the next.
template <int P>
INLINE void tile_step(const int16_t* x, int64_t stride, const char* w, int64_t apart) {
    _tile_loadd(4, x, stride * 2);
    _tile_loadd(5, w, LINE);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (P == 4) {
        _tile_loadd(6, w + apart, LINE);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, w + 2 * apart, LINE);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, w + 3 * apart, LINE);
        _tile_dpbf16ps(3, 4, 5);
    }
}

// Rows from `row` on by P panels. The first `done` of the rows are there already.
template <int P>
static void tile_products(const Matrix& m, const Operand& a, int64_t row, int64_t rows, int64_t done, int64_t panel, Coming& coming,
                          const Output& out) {
    const int64_t bytes = panel_bytes(m), whole = m.columns / TILE_INPUTS;
    const char* w = (const char*)m.codes + panel * bytes;
    const int16_t* x = (const int16_t*)a.q + row * a.stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < whole; k++) {
        coming.fetch();
        tile_step<P>(x + k * TILE_INPUTS, a.stride, w + k * TILE_BYTES, bytes);
    }
    if (m.columns % TILE_INPUTS) {  // the last inputs, and zeros behind them
        alignas(64) char rest[P * TILE_BYTES] = {};
        for (int p = 0; p < P; p++) memcpy(rest + p * TILE_BYTES, w + p * bytes + whole * TILE_BYTES, bytes - whole * TILE_BYTES);
        settle_memory();
        tile_step<P>(x + whole * TILE_INPUTS, a.stride, rest, TILE_BYTES);
    }
    alignas(64) float sums[4][TILE_ROWS][PANEL];
    _tile_stored(0, sums[0], LINE);
    _tile_stored(1, sums[1], LINE);
    _tile_stored(2, sums[2], LINE);
    _tile_stored(3, sums[3], LINE);
    settle_memory();
    for (int p = 0; p < P; p++)
        for (int64_t r = done; r < rows; r++) write_panel(m, sums[p][r], panel + p, out, row + r);
}

// All rows by panels [first, last), and fetch those from `next` on meanwhile. The last rows make a whole tile with some before them.
static void tile_item(const Matrix& m, const Operand& a, int64_t rows, int64_t first, int64_t last, int64_t next, const Output& out) {
    const int64_t bytes = panel_bytes(m), height = rows < TILE_ROWS ? rows : TILE_ROWS, count = ceil_div(rows, TILE_ROWS);
    Coming coming;
    if (next + ITEM_PANELS <= ceil_div(m.rows, PANEL)) {
        const char* at = (const char*)m.codes + next * bytes;
        const int lines = TILE_BYTES / LINE / count;  // a tile of rows fetches its share
        coming = {at, at + bytes, bytes, lines ? lines : 1};
    }
    for (int64_t t = 0; t < count; t++) {
        const int64_t row = t * TILE_ROWS + height <= rows ? t * TILE_ROWS : rows - height, done = t * TILE_ROWS - row;
        if (last - first == ITEM_PANELS)
            tile_products<ITEM_PANELS>(m, a, row, height, done, first, coming, out);
        else
            for (int64_t p = first; p < last; p++) tile_products<1>(m, a, row, height, done, p, coming, out);
    }
}

// What product does, for weights in bf16. Ends with a barrier, unless there are no rows.
static void tile_product(Team& team, const Matrix& m, const Operand& a, int64_t rows, const Output& out) {
    if (rows == 0) return;
    round_rows(team, a, rows);
    const Shapes shapes(rows);
    settle_memory();
    _tile_loadconfig(&shapes);
    items(team, m, [&](int64_t first, int64_t last, int64_t next) { tile_item(m, a, rows, first, last, next, out); });
    _tile_release();
}

}  // namespace
