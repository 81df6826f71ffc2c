// What AVX2 has of its own: 16 registers of 8 floats.
#pragma once

namespace {

constexpr int ACCUMULATORS = 12;  // registers of a tile of sums

INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vi widen_s8(const void* p) { return (vi)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
INLINE vi widen_bf16(const void* p) { return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)); }
INLINE vf widen_fp16(const void* p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
INLINE vi round_up(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
INLINE vf biggest(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smallest(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }

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

// Eight numbers whose sum is that of the lanes.
INLINE __m256 folded(vf a) { return (__m256)a; }

INLINE vd fma(vd a, vd b, vd c) { return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
INLINE vd biggest(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
INLINE vd widen_floats(const float* p) { return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p)); }
INLINE double sum(vd a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE double max_of(vd a) { return std::max(std::max(a[0], a[2]), std::max(a[1], a[3])); }

// A bit for each lane: whether it is negative, as what is true is.
INLINE int signs(vi a) { return _mm256_movemask_ps((__m256)a); }
INLINE int signs(vl a) { return _mm256_movemask_pd((__m256d)a); }

INLINE vw times(vw a, uint64_t b) {
    const __m256i x = (__m256i)a, low = _mm256_set1_epi64x(b), high = _mm256_set1_epi64x(b >> 32);
    const vw crossed = (vw)_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low) + (vw)_mm256_mul_epu32(x, high);
    return (vw)_mm256_mul_epu32(x, low) + (crossed << 32);
}

// Numbers from `i` on, and two of each four of them; their upper halves are in order when those from i + 2 on follow in each four.
INLINE vw upwards(int64_t i) { return (vw)(vl){i, i + 1, i + 2, i + 3}; }
INLINE vw two_of_four(int64_t i) { return (vw)(vl){i, i + 1, i + 4, i + 5}; }
INLINE vu upper_halves(vw a, vw b) { return (vu)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd); }

}  // namespace
