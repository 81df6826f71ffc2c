// Vectors of LANES floats and the operations that are AVX2's own: another instruction set is another version of this file. Everything is in
// an anonymous namespace: compiled for AVX2, no code of it may be linked into what runs elsewhere.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "abi.hpp"
#include "team.hpp"

namespace {

constexpr int LANES = 8;
constexpr int ACCUMULATORS = 12;  // registers of a tile of sums

typedef float vf __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES), aligned(4)));

#define INLINE static inline __attribute__((always_inline))
#define INLINE_METHOD inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")  // or sums would not stay in registers

INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vi widen_s8(const void* p) { return (vi)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
INLINE vi widen_bf16(const void* p) { return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)); }
INLINE vf widen_fp16(const void* p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
INLINE vi round_up(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
INLINE vf biggest(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smallest(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }

INLINE void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

INLINE vf load(const float* p) { return *(const vf*)p; }
INLINE void store(float* p, vf a) { *(vf*)p = a; }
INLINE vf all(float a) { return a - (vf){}; }

// The inner loops of products, in the order in which they are written: volatile, because the compiler would move all loads to the front,
// and they would push sums out of the registers.
INLINE vf spread(const float* p) {
    vf out;
    asm volatile("vbroadcastss %1, %0" : "=v"(out) : "m"(*p));
    return out;
}
INLINE vi spread_32(const char* p) {  // two integers of 16 bits, or four of 8
    vi out;
    asm volatile("vpbroadcastd %1, %0" : "=v"(out) : "m"(*(const char(*)[4])p));
    return out;
}

// The low and the high halves of bytes.
alignas(32) constexpr uint32_t NIBBLES[LANES] = {0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f,
                                                 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f};
INLINE vi low_nibbles(const char* p) {
    vi out;
    asm volatile("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=v"(out) : "m"(*(const vu*)p), "m"(*(const vu*)NIBBLES));
    return out;
}
INLINE vi high_nibbles(const char* p) {
    vi out;
    asm volatile("vmovdqu %1, %0\n\tvpsrlw $4, %0, %0\n\tvpand %2, %0, %0"
                 : "=v"(out)
                 : "m"(*(const vu*)p), "m"(*(const vu*)NIBBLES));
    return out;
}

// The low and the high bf16 of pairs, as floats. The mask stays in memory: there is no register left for it.
alignas(32) constexpr uint32_t HIGH[LANES] = {~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu, ~0xffffu};
INLINE vf low_bf16(const char* pairs) {
    vf out;
    asm volatile("vmovdqu %1, %0\n\tvpslld $16, %0, %0" : "=v"(out) : "m"(*(const vu*)pairs));
    return out;
}
INLINE vf high_bf16(const char* pairs) {
    vf out;
    asm volatile("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=v"(out) : "m"(*(const vu*)pairs), "m"(*(const vu*)HIGH));
    return out;
}

INLINE void fma_into(vf& sum, vf a, vf b) { asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
// Products of signed 16-bit integers, summed in pairs; of unsigned and signed 8-bit integers, summed in pairs to 16 bits: a group of
// nibbles by at most 127 each stays below 2^15. Each is added at once: the compiler would make several first, and keep them in memory.
INLINE void add_pairs(vi& sum, vi a, vi b) {
    sum += (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
    asm volatile("" : "+v"(sum));
}
INLINE void add_quads(vi& sum, vi a, vi b) {
    sum = (vi)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)a, (__m256i)b));
    asm volatile("" : "+v"(sum));
}
INLINE vi sums_of_pairs(vi a) { return (vi)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(1)); }

// Integers that fit, in 16 or 8 bits.
INLINE __m128i in_16_bits(vi a) { return _mm_packs_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1)); }
INLINE void store_s16(char* p, vi a) { _mm_storeu_si128((__m128i*)p, in_16_bits(a)); }
INLINE void store_s8(char* p, vi a) { _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(in_16_bits(a), in_16_bits(a))); }

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
    const __m256 pairs = _mm256_hadd_ps((__m256)a[0], (__m256)a[1]), others = _mm256_hadd_ps((__m256)a[2], (__m256)a[3]);
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
