// What AVX-512 (F, BW, DQ, VL) has of its own: 32 registers of 16 floats, one for a panel.
#pragma once

namespace {

constexpr int ACCUMULATORS = 24;  // registers of a tile of sums

INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vi widen_s8(const void* p) { return (vi)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
INLINE vi widen_bf16(const void* p) { return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)); }
INLINE vf widen_fp16(const void* p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE vi round_up(vf a) { return (vi)_mm512_cvtps_epi32((__m512)a); }
INLINE vf biggest(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smallest(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }

// Keeps what makes `x` where it is written. In the inner loops of products the compiler would move all loads to the front, and they would
// push sums out of the registers.
#ifndef IN_ORDER
#define IN_ORDER(x) asm volatile("" : "+v"(x))
#endif

INLINE vf spread(const float* p) {
    vf out = *p - (vf){};
    IN_ORDER(out);
    return out;
}
INLINE vi spread_32(const char* p) {  // two integers of 16 bits, or four of 8
    int32_t all_of_them;
    memcpy(&all_of_them, p, sizeof all_of_them);
    vi out = all_of_them - (vi){};
    IN_ORDER(out);
    return out;
}

// The low and the high halves of bytes.
INLINE vi low_nibbles(const char* p) {
    vi out = *(const vi*)p & 0x0f0f0f0f;
    IN_ORDER(out);
    return out;
}
INLINE vi high_nibbles(const char* p) {
    vi out = (vi)(*(const vu*)p >> 4) & 0x0f0f0f0f;
    IN_ORDER(out);
    return out;
}

// The low and the high bf16 of pairs, as floats.
INLINE vf low_bf16(const char* pairs) {
    vf out = (vf)(*(const vu*)pairs << 16);
    IN_ORDER(out);
    return out;
}
INLINE vf high_bf16(const char* pairs) {
    vf out = (vf)(*(const vu*)pairs & 0xffff0000u);
    IN_ORDER(out);
    return out;
}

INLINE void fma_into(vf& sum, vf a, vf b) {
    sum = fma(a, b, sum);
    IN_ORDER(sum);
}
// Products of signed 16-bit integers, summed in pairs; of unsigned and signed 8-bit integers, summed in pairs to 16 bits: a group of
// nibbles by at most 127 each stays below 2^15.
INLINE void add_pairs(vi& sum, vi a, vi b) {
#ifdef AMX  // whoever has AMX has VNNI
    sum = (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
    sum += (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
    IN_ORDER(sum);
}
INLINE void add_quads(vi& sum, vi a, vi b) {
    sum = (vi)_mm512_add_epi16((__m512i)sum, _mm512_maddubs_epi16((__m512i)a, (__m512i)b));
    IN_ORDER(sum);
}
INLINE vi sums_of_pairs(vi a) { return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)((vi){} + 0x00010001)); }

// Integers that fit, in 16 or 8 bits.
typedef int16_t vs __attribute__((vector_size(2 * LANES), aligned(2)));
typedef int8_t vb __attribute__((vector_size(LANES), aligned(1)));
INLINE void store_s16(char* p, vi a) { *(vs*)p = __builtin_convertvector(a, vs); }
INLINE void store_s8(char* p, vi a) { *(vb*)p = __builtin_convertvector(a, vb); }

// Eight numbers whose sum is that of the lanes.
INLINE __m256 folded(vf a) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)a), _mm512_extractf32x8_ps((__m512)a, 1));
}

INLINE vd fma(vd a, vd b, vd c) { return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
INLINE vd biggest(vd a, vd b) { return (vd)_mm512_max_pd((__m512d)a, (__m512d)b); }
INLINE vd widen_floats(const float* p) { return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p)); }
INLINE double sum(vd a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }
INLINE double max_of(vd a) {
    double best = a[0];
    for (int i = 1; i < WIDE; i++) best = std::max(best, a[i]);
    return best;
}

// A bit for each lane: whether it is negative, as what is true is.
INLINE int signs(vi a) { return _mm512_movepi32_mask((__m512i)a); }
INLINE int signs(vl a) { return _mm512_movepi64_mask((__m512i)a); }

INLINE vw times(vw a, uint64_t b) { return a * b; }

// Numbers from `i` on, and two of each four of them; their upper halves are in order when those from i + 2 on follow in each four.
INLINE vw upwards(int64_t i) { return (vw)(i + (vl){0, 1, 2, 3, 4, 5, 6, 7}); }
INLINE vw two_of_four(int64_t i) { return (vw)(i + (vl){0, 1, 4, 5, 8, 9, 12, 13}); }
INLINE vu upper_halves(vw a, vw b) { return (vu)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xdd); }

}  // namespace
