// Stands before the compiler's header of this name while the tests build avx512 and amx for a processor that has only AVX2: the
// instructions that the kernels name, in terms of it. A vector of 64 bytes is two of 32 in memory.
#pragma once
#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define IN_ORDER(x)  // no register holds it

namespace emulated {

template <class Whole, class Half>
struct Halves {
    Half low, high;
    Halves(Half l, Half h) : low(l), high(h) {}
    explicit Halves(Whole a) { memcpy((void*)this, &a, 64); }
    operator Whole() const {
        Whole out;
        memcpy(&out, (const void*)this, 64);
        return out;
    }
};
using Floats = Halves<__m512, __m256>;
using Doubles = Halves<__m512d, __m256d>;
using Integers = Halves<__m512i, __m256i>;

template <class Of, class Whole, class F>
static inline Whole each(Whole a, F f) {
    const Of x(a);
    return Of(f(x.low), f(x.high));
}
template <class Of, class Whole, class F>
static inline Whole each(Whole a, Whole b, F f) {
    const Of x(a), y(b);
    return Of(f(x.low, y.low), f(x.high, y.high));
}
template <class Of, class Whole, class F>
static inline Whole each(Whole a, Whole b, Whole c, F f) {
    const Of x(a), y(b), z(c);
    return Of(f(x.low, y.low, z.low), f(x.high, y.high, z.high));
}

#define TWO(OF, CALL) each<OF>(a, b, [](auto x, auto y) { return CALL; })
#define THREE(OF, CALL) each<OF>(a, b, c, [](auto x, auto y, auto z) { return CALL; })
static inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) { return THREE(Floats, _mm256_fmadd_ps(x, y, z)); }
static inline __m512d fmadd_pd(__m512d a, __m512d b, __m512d c) { return THREE(Doubles, _mm256_fmadd_pd(x, y, z)); }
static inline __m512 max_ps(__m512 a, __m512 b) { return TWO(Floats, _mm256_max_ps(x, y)); }
static inline __m512 min_ps(__m512 a, __m512 b) { return TWO(Floats, _mm256_min_ps(x, y)); }
static inline __m512d max_pd(__m512d a, __m512d b) { return TWO(Doubles, _mm256_max_pd(x, y)); }
static inline __m512i madd_epi16(__m512i a, __m512i b) { return TWO(Integers, _mm256_madd_epi16(x, y)); }
static inline __m512i maddubs_epi16(__m512i a, __m512i b) { return TWO(Integers, _mm256_maddubs_epi16(x, y)); }
static inline __m512i add_epi16(__m512i a, __m512i b) { return TWO(Integers, _mm256_add_epi16(x, y)); }
static inline __m512i dpwssd_epi32(__m512i c, __m512i a, __m512i b) {
    return THREE(Integers, _mm256_add_epi32(z, _mm256_madd_epi16(x, y)));
}
#undef TWO
#undef THREE

static inline __m512i cvtps_epi32(__m512 a) {
    const Floats x(a);
    return Integers(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
}
static inline __m512 shuffle_ps_0xdd(__m512 a, __m512 b) {
    return each<Floats>(a, b, [](__m256 x, __m256 y) { return _mm256_shuffle_ps(x, y, 0xdd); });
}

#define FROM_HALVES(OF, CONVERT) OF(CONVERT(_mm256_castsi256_si128(a)), CONVERT(_mm256_extracti128_si256(a, 1)))
static inline __m512i cvtepi8_epi16(__m256i a) { return FROM_HALVES(Integers, _mm256_cvtepi8_epi16); }
static inline __m512i cvtepu16_epi32(__m256i a) { return FROM_HALVES(Integers, _mm256_cvtepu16_epi32); }
static inline __m512 cvtph_ps(__m256i a) { return FROM_HALVES(Floats, _mm256_cvtph_ps); }
#undef FROM_HALVES
static inline __m512d cvtps_pd(__m256 a) {
    return Doubles(_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
}

static inline __m256 half(__m512 a, int which) { return which ? Floats(a).high : Floats(a).low; }
static inline int movepi32_mask(__m512i a) {
    const Floats x((__m512)a);
    return _mm256_movemask_ps(x.low) | _mm256_movemask_ps(x.high) << 8;
}
static inline int movepi64_mask(__m512i a) {
    const Doubles x((__m512d)a);
    return _mm256_movemask_pd(x.low) | _mm256_movemask_pd(x.high) << 4;
}

// -- AMX: Intel's manual, volume 2, LDTILECFG to TILEZERO -----------------------------------------------------------

struct Tile {
    int rows = 0, row_bytes = 0;
    uint8_t data[16][64];
};
static thread_local Tile tiles[8];
static thread_local bool configured = false;

static inline void must(bool holds, const char* what) {  // what the processor answers with a fault
    if (holds) return;
    fprintf(stderr, "emulated AMX: %s\n", what);
    abort();
}

static inline void loadconfig(const void* at) {
    const uint8_t* bytes = (const uint8_t*)at;
    must(bytes[0] == 1 && bytes[1] == 0, "the palette is 1 and no row was begun");
    for (int i = 2; i < 64; i++) must((i >= 16 && i < 32) || (i >= 48 && i < 56) || bytes[i] == 0, "reserved bytes are zero");
    for (int t = 0; t < 8; t++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * t, 2);
        tiles[t].rows = bytes[48 + t], tiles[t].row_bytes = row_bytes;
        must(tiles[t].rows <= 16 && row_bytes <= 64 && !tiles[t].rows == !row_bytes, "a tile has up to 16 rows of up to 64 bytes");
        memset(tiles[t].data, 0, 1024);
    }
    configured = true;
}
static inline void release() { configured = false; }

static inline Tile& tile(int t) {
    must(configured && tiles[t].rows, "tiles are configured");
    return tiles[t];
}
static inline void zero(int t) { memset(tile(t).data, 0, 1024); }
static inline void loadd(int t, const void* at, int64_t stride) {
    Tile& to = tile(t);
    memset(to.data, 0, 1024);
    for (int r = 0; r < to.rows; r++) memcpy(to.data[r], (const char*)at + r * stride, to.row_bytes);
}
static inline void stored(int t, void* at, int64_t stride) {
    const Tile& from = tile(t);
    for (int r = 0; r < from.rows; r++) memcpy((char*)at + r * stride, from.data[r], from.row_bytes);
}

// Numbers too small for a full exponent are zeros, whether they come in or go out.
static inline float flushed(float a) { return std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
static inline float from_bf16(const uint8_t* at) {
    uint16_t half;
    memcpy(&half, at, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float out;
    memcpy(&out, &bits, 4);
    return flushed(out);
}

// Each row and column: two chains over the first and the second of the pairs, added, and then added to what is there.
static inline void dpbf16ps(int sums, int left, int right) {
    Tile &c = tile(sums), &a = tile(left), &b = tile(right);
    must(c.rows == a.rows && a.row_bytes == 4 * b.rows && c.row_bytes == b.row_bytes, "the shapes of a product fit");
    float weights[16][2][16];
    for (int k = 0; k < b.rows; k++)
        for (int n = 0; n < 16; n++)
            for (int half = 0; half < 2; half++) weights[k][half][n] = from_bf16(b.data[k] + 4 * n + 2 * half);
    for (int m = 0; m < c.rows; m++) {
        float chains[2][16] = {};
        for (int k = 0; k < b.rows; k++)
            for (int half = 0; half < 2; half++) {
                const float x = from_bf16(a.data[m] + 4 * k + 2 * half);
                for (int n = 0; n < 16; n++) chains[half][n] = flushed(__builtin_fmaf(x, weights[k][half][n], chains[half][n]));
            }
        for (int n = 0; n < c.row_bytes / 4; n++) {
            float sum;
            memcpy(&sum, c.data[m] + 4 * n, 4);
            sum = flushed(flushed(sum) + flushed(chains[0][n] + chains[1][n]));
            memcpy(c.data[m] + 4 * n, &sum, 4);
        }
    }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::loadconfig
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::loadd
#define _tile_stored emulated::stored
#define _tile_dpbf16ps emulated::dpbf16ps

#undef _mm512_shuffle_ps
#undef _mm512_extractf32x8_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fmadd_pd emulated::fmadd_pd
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_max_pd emulated::max_pd
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_maddubs_epi16 emulated::maddubs_epi16
#define _mm512_add_epi16 emulated::add_epi16
#define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_shuffle_ps(a, b, how) emulated::shuffle_ps_##how(a, b)
#define _mm512_cvtepi8_epi16 emulated::cvtepi8_epi16
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_pd emulated::cvtps_pd
#define _mm512_castps512_ps256(a) emulated::half(a, 0)
#define _mm512_extractf32x8_ps emulated::half
#define _mm512_movepi32_mask emulated::movepi32_mask
#define _mm512_movepi64_mask emulated::movepi64_mask
