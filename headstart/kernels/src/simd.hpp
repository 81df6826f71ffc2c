// Vectors of LANES floats (-DLANES=8 or 16). What an instruction set has of its own stands in avx2.hpp or avx512.hpp. Everything is in an
// anonymous namespace: compiled for one processor, no code of it may be linked into what runs elsewhere.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "abi.hpp"
#include "team.hpp"

#define INLINE static inline __attribute__((always_inline))
#define INLINE_METHOD inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")  // or sums would not stay in registers

namespace {

constexpr int WIDE = LANES / 2;  // doubles in a vector

typedef float vf __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES), aligned(4)));
typedef double vd __attribute__((vector_size(8 * WIDE), aligned(8)));
typedef int64_t vl __attribute__((vector_size(8 * WIDE), aligned(8)));
typedef uint64_t vw __attribute__((vector_size(8 * WIDE), aligned(8)));

}  // namespace

#if LANES == 16
#include "avx512.hpp"
#else
#include "avx2.hpp"
#endif

namespace {

INLINE void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

INLINE vf load(const float* p) { return *(const vf*)p; }
INLINE void store(float* p, vf a) { *(vf*)p = a; }
INLINE vf all(float a) { return a - (vf){}; }

INLINE vf to_float(vi a) { return __builtin_convertvector(a, vf); }

// The sum of the lanes, always in the same order: halves are added until one is left.
INLINE float sum(vf a) {
    float x[LANES];
    store(x, a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

// The sums of the lanes of four vectors times a scale, -inf behind the first `count` of them; each is made in the same order, wherever
// it stands.
INLINE void sum_four(const vf (&a)[4], float scale, int count, float* out) {
    const __m256 pairs = _mm256_hadd_ps(folded(a[0]), folded(a[1])), others = _mm256_hadd_ps(folded(a[2]), folded(a[3]));
    const __m256 halves = _mm256_hadd_ps(pairs, others);
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    const __m128 none = (__m128)_mm_cmpgt_epi32(_mm_setr_epi32(1, 2, 3, 4), _mm_set1_epi32(count));
    _mm_storeu_ps(out, _mm_blendv_ps(_mm_mul_ps(sums, _mm_set1_ps(scale)), _mm_set1_ps(-INFINITY), none));
}

INLINE float max_of(vf a) {
    float x[LANES], best;
    store(x, a);
    best = x[0];
    for (int i = 1; i < LANES; i++) best = x[i] > best ? x[i] : best;
    return best;
}

// e^a, within 2 units in the last place for a <= 88; 0 below -87. NaN stays NaN.
// Cody-Waite reduction to |r| <= ln 2 / 2 and a polynomial of degree 6 (Cephes, expf).
INLINE vf exponential(vf a) {
    vf x = smallest(all(88.0f), a);   // the second operand of max and min is what NaN gives
    x = biggest(all(-87.4f), x);
    vi n = round_up(x * 1.44269504088896341f);
    vf k = to_float(n);
    vf r = fma(k, all(-0.693359375f), x);
    r = fma(k, all(2.12194440e-4f), r);
    vf p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = fma(p, r * r, r + 1.0f);
    vf y = (vf)((vi)p + (n << 23));
    return (vf)((vi)y & ((a >= -87.0f) | (a != a)));
}

INLINE float widen(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

// To bf16, to the nearest, ties to even; NaN stays NaN.
INLINE uint16_t narrow(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    if (a != a) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t padded(int64_t columns) { return ceil_div(columns, GROUP) * GROUP; }

}  // namespace
