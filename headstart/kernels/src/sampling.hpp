// From logits to a token: the law (what ops/sampling.py:law computes), the race on it (ops/noise.py:race), both at once, and the judgement of
// drafts by their laws (ops/verify.py:judge). A row is one thread's, so its numbers are the same bits beside any other rows and on any
// number of threads.
#pragma once
#include "simd.hpp"

namespace {

constexpr int64_t BLOCK = 64;  // entries whose largest stands for them while the k largest are looked for

INLINE vd load(const double* p) { return *(const vd*)p; }
INLINE void store(double* p, vd a) { *(vd*)p = a; }
INLINE vd all(double a) { return a - (vd){}; }

// Entries of a row from `i` on, `fill` behind its end.
INLINE vd entries(const float* row, int64_t i, int64_t size, float fill) {
    if (i + WIDE <= size) return widen_floats(row + i);
    float left[WIDE];
    for (int j = 0; j < WIDE; j++) left[j] = i + j < size ? row[i + j] : fill;
    return widen_floats(left);
}

INLINE vd entries(const double* row, int64_t i, int64_t size, double fill) {
    if (i + WIDE <= size) return load(row + i);
    vd left;
    for (int j = 0; j < WIDE; j++) left[j] = i + j < size ? row[i + j] : fill;
    return left;
}

INLINE void put(double* row, int64_t i, int64_t size, vd a) {
    if (i + WIDE <= size) return store(row + i, a);
    for (int j = 0; i + j < size; j++) row[i + j] = a[j];
}

// e^a for a <= 0, within 1.01 units in the last place down to where nothing is left; 0 for -inf, NaN stays NaN.
// Cody-Waite reduction to |r| <= ln 2 / 2, then the Taylor series to r^13: what follows is below 2^-57 of it.
INLINE vd exponential(vd a) {
    // 1.5 * 2^52: added to a number, its integer stands in the lowest bits; and 128, for the last step.
    constexpr double to_integer = 6755399441055744.0 + 128;
    const vd x = biggest(all(-746.0), a);  // the second operand is what NaN gives
    const vd t = fma(x, all(1.4426950408889634), all(to_integer)), k = t - to_integer;
    vd r = fma(k, all(-0x1.62e42fefa38p-1), x);  // ln 2 in 42 bits, whose product with k is exact, and the rest
    r = fma(k, all(-0x1.ef35793c7673p-45), r);
    // 1 + (r + r^2 (1/2! + r/3! + ...)), whose pairs need not wait for each other.
    const auto pair = [&](double even, double odd) { return fma(all(odd), r, all(even)); };
    const vd r2 = r * r, r4 = r2 * r2;
    const vd low = fma(pair(1.0 / 24, 1.0 / 120), r2, pair(0.5, 1.0 / 6));
    const vd middle = fma(pair(1.0 / 40320, 1.0 / 362880), r2, pair(1.0 / 720, 1.0 / 5040));
    const vd high = fma(pair(1.0 / 479001600, 1.0 / 6227020800), r2, pair(1.0 / 3628800, 1.0 / 39916800));
    const vd p = fma(fma(fma(high, r4, middle), r4, low), r2, r) + 1.0;
    // Times 2^(k + 128), and then 2^-128, which rounds where the result has no full exponent.
    const vd y = (vd)((vl)p + ((vl)t << 52)) * 0x1p-128;
    return (vd)((vl)y | (a != a));
}

// -- the law ---------------------------------------------------------------------------------------------------------

struct Peak {
    float top;    // the largest logit that is a number
    bool finite;  // whether all are
};

INLINE Peak peak_of(const float* x, int64_t n) {
    constexpr int UNROLLED = 4;
    vf best[UNROLLED], odd[UNROLLED] = {};  // odd: 0, or NaN where a number is not finite
    for (vf& b : best) b = all(x[0]);
    int64_t i = 0;
    for (; i + UNROLLED * LANES <= n; i += UNROLLED * LANES)
        UNROLL
        for (int j = 0; j < UNROLLED; j++) {
            const vf v = load(x + i + j * LANES);
            best[j] = biggest(best[j], v);
            odd[j] += v - v;
        }
    float top = max_of(biggest(biggest(best[0], best[1]), biggest(best[2], best[3])));
    float strange = sum(odd[0] + odd[1] + odd[2] + odd[3]);
    for (; i < n; i++) {
        top = x[i] > top ? x[i] : top;
        strange += x[i] - x[i];
    }
    return {top, strange == 0};
}

// Weights [n] of logits at a temperature, the largest logit's being 1; returns their sum, of which their shares are the
// probabilities. NaN where there are none: a logit is NaN or +inf, or all are -inf. Rows that are read next are fetched meanwhile.
static double weigh(const float* x, int64_t n, double top, double temperature, double* weights, const double* q = nullptr,
                    const float* next = nullptr) {
    vd total = {};
    for (int64_t i = 0; i < n; i += WIDE) {
        if (q) prefetch((const char*)(q + i));
        if (next) prefetch((const char*)(next + i));
        vd v = entries(x, i, n, -INFINITY) - top;
        if (temperature != 1) v /= temperature;
        v = exponential(v);
        put(weights, i, n, v);
        total += v;
    }
    return sum(total);
}

INLINE void divide(double* p, int64_t n, double total) {
    for (int64_t i = 0; i < n; i += WIDE) put(p, i, n, entries(p, i, n, 0.0) / total);
}

// Zero what is below the threshold, and divide by what is left.
static void keep(double* p, int64_t n, double threshold) {
    vd total = {};
    for (int64_t i = 0; i < n; i += WIDE) {
        const vd v = entries(p, i, n, 0.0), kept = (vd)((vl)v & (v >= threshold));
        put(p, i, n, kept);
        total += kept;
    }
    divide(p, n, sum(total));
}

struct Falling {  // a type of this instruction set's own, so that the algorithms below are too
    bool operator()(double a, double b) const { return a > b; }
};
struct Rising {
    bool operator()(double a, double b) const { return a < b; }
};

// Those that reach a bound, in any order; returns how many.
static int64_t gather(const double* p, int64_t size, double bound, double* out) {
    int64_t n = 0;
    for (int64_t i = 0; i < size; i += WIDE) {
        const vd v = entries(p, i, size, -1.0);
        for (int hits = signs((vl)(v >= bound)); hits; hits &= hits - 1) out[n++] = v[__builtin_ctz(hits)];
    }
    return n;
}

INLINE double largest_of(const double* p, int64_t size) {
    vd best = all(p[0]);
    for (int64_t i = 0; i < size; i += WIDE) best = biggest(best, entries(p, i, size, p[0]));
    return max_of(best);
}

INLINE double kth_largest(double* values, int64_t count, int64_t k) {
    std::nth_element(values, values + k - 1, values + count, Falling());
    return values[k - 1];
}

// The k-th largest. k blocks have largest ones of at least the k-th of those, so nothing below that need be looked at.
static double top_k_threshold(const double* p, int64_t size, int64_t k, double* room) {
    const int64_t blocks = ceil_div(size, BLOCK);
    double bound = 0;
    if (k <= blocks) {
        for (int64_t b = 0; b < blocks; b++) room[b] = largest_of(p + b * BLOCK, std::min(BLOCK, size - b * BLOCK));
        bound = kth_largest(room, blocks, k);
    }
    return kth_largest(room, gather(p, size, bound, room), k);
}

// The smallest of the shortest run of largest ones whose sum, added in falling order, reaches top_p.
static double top_p_threshold(const double* p, int64_t size, double top_p, double* room) {
    // Those below this have less than (1 - top_p) / 2 together, so the run ends before them.
    int64_t n = gather(p, size, (1 - top_p) / (2 * (double)size), room);
    std::make_heap(room, room + n, Rising());
    double mass = 0;
    for (;; n--) {
        mass += room[0];
        if (mass >= top_p || n == 1) return room[0];
        std::pop_heap(room, room + n, Rising());
    }
}

INLINE bool filters_any(const Filters& f, int64_t n) { return f.min_p > 0 || (0 < f.top_k && f.top_k < n) || f.top_p < 1; }

// The law [n] of a row whose largest logit is `top`; `room` has as many numbers.
static void law_of_row(const float* x, int64_t n, float top, const Filters& f, double* p, double* room) {
    divide(p, n, weigh(x, n, top, f.temperature, p));
    if (p[0] != p[0]) return;
    if (f.min_p > 0) keep(p, n, f.min_p * largest_of(p, n));
    if (0 < f.top_k && f.top_k < n) keep(p, n, top_k_threshold(p, n, f.top_k, room));
    if (f.top_p < 1) keep(p, n, top_p_threshold(p, n, f.top_p, room));
}

int64_t law_bytes(const Logits& logits, int threads) { return threads * logits.size * sizeof(double); }

void law_of(Team& team, const Logits& logits, const Filters& f, double* out, char* scratch) {
    const int64_t n = logits.size;
    double* room = (double*)scratch + team.grab() * n;  // each thread's own
    team.barrier();
    for (int64_t r; (r = team.grab()) < logits.rows;) {
        const float* x = logits.at + r * logits.stride;
        law_of_row(x, n, peak_of(x, n).top, f, out + r * n, room);
    }
}

// -- the race --------------------------------------------------------------------------------------------------------

INLINE uint64_t times(uint64_t a, uint64_t b) { return a * b; }

// core/rand.py:mix before its last step, which leaves the upper 31 bits alone.
template <class Bits>
INLINE Bits almost_mixed(Bits x) {
    x += 0x9E3779B97F4A7C15u;
    x = times(x ^ (x >> 30), 0xBF58476D1CE4E5B9u);
    return times(x ^ (x >> 27), 0x94D049BB133111EBu);
}

// core/rand.py:to_unit of mix.
INLINE double uniform(uint64_t x) {
    x = almost_mixed(x);
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}
INLINE vd uniform(vw x) {
    x = almost_mixed(x);
    x ^= x >> 31;
    // 53 bits to a double: the upper 21 as units of 2^32 above 2^84, the lower 32 as units above 2^52; both steps are exact.
    const vd upper = (vd)((x >> 43) | 0x4530000000000000u), lower = (vd)((x >> 11 & 0xffffffffu) | 0x4330000000000000u);
    return ((upper - 0x1.00000001p84) + lower) * 0x1p-53;
}

// Who arrives first: the least -log1p(-u) / weight, the first of equals. Since -log1p(-u) >= u, whoever is too late by u alone needs no
// logarithm.
struct Finish {
    double time = INFINITY;
    int64_t at = -1;  // nobody yet

    void meet(int64_t i, double u, double weight) {
        if (!(weight > 0)) return;
        const double arrival = -std::log1p(-u) / weight;
        if (arrival < time || at < 0) *this = {arrival, i};
    }
};

// The winner among entries [n] of a law; -1 where it has no mass.
static int64_t race_on(const double* law, int64_t n, uint64_t key, const int64_t* names) {
    Finish first;
    for (int64_t i = 0; i < n; i += WIDE) {
        const vd p = entries(law, i, n, 0.0);
        if (!signs((vl)(p > 0.0))) continue;
        vw id = upwards(i);
        if (names)
            for (int j = 0; j < WIDE; j++) id[j] = i + j < n ? names[i + j] : 0;
        const vd u = uniform(id ^ key);
        for (int hits = signs((vl)(u <= p * (first.time * (1 + 1e-12)))); hits; hits &= hits - 1) {
            const int j = __builtin_ctz(hits);
            first.meet(i + j, u[j], p[j]);
        }
    }
    return first.at;
}

void race_of(Team& team, const Race& race, int64_t* id) {
    if (team.grab() != 0) return;
    const int64_t at = race_on(race.law, race.size, race.key, race.names);
    *id = at < 0 || !race.names ? at : race.names[at];
}

// The upper 24 of 31 bits that are final, of LANES ids from `i` on, as fractions: never above their uniforms.
INLINE vf low_uniforms(int64_t i, uint64_t key) {
    const vu upper = upper_halves(almost_mixed(two_of_four(i) ^ key), almost_mixed(two_of_four(i + 2) ^ key));
    return to_float((vi)(upper >> 8)) * 0x1p-24f;
}

// The race on softmax(x / temperature), which need not be computed for it: a bound in fp32 tells who may arrive first, few of them do,
// and theirs are weighed in fp64. `top`: the largest logit, all are finite.
static int64_t race_on_logits(const float* x, int64_t n, float top, double temperature, uint64_t key) {
    constexpr float slack = 1.0001f;  // for the roundings of an exponent of at most 88 and of what follows
    const float inverse = (float)(1 / temperature);
    Finish first;
    const auto meet = [&](int64_t i) {
        first.meet(i, uniform((uint64_t)i ^ key), exponential(all(((double)x[i] - (double)top) / temperature))[0]);
    };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vf weight = biggest(exponential((load(x + i) - top) * inverse), all(1e-38f)) * slack;
        const vf limit = all((float)first.time * slack) * weight;
        for (int hits = signs(low_uniforms(i, key) <= limit); hits; hits &= hits - 1) meet(i + __builtin_ctz(hits));
    }
    for (; i < n; i++) meet(i);
    return first.at;
}

// -- the choice ------------------------------------------------------------------------------------------------------

static int64_t choose_in(const Choice& c, double* law, double* room) {
    const auto [top, finite] = peak_of(c.logits, c.size);
    if (!finite) return -1;
    if (c.filters.temperature == 0) {
        int64_t i = 0;
        while (i + LANES <= c.size && !signs(load(c.logits + i) == all(top))) i += LANES;
        while (c.logits[i] != top) i++;
        return i;
    }
    if (!filters_any(c.filters, c.size)) return race_on_logits(c.logits, c.size, top, c.filters.temperature, c.key);
    law_of_row(c.logits, c.size, top, c.filters, law, room);
    return race_on(law, c.size, c.key, nullptr);
}

int64_t choose_bytes(const Choice* choices, int64_t count, int threads) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++)
        if (filters_any(choices[i].filters, choices[i].size)) most = std::max(most, choices[i].size);
    return 2 * threads * most * sizeof(double) + 64;
}

// The token of each row, by its own options; -1 for a row in which a logit is not finite.
void choose_of(Team& team, const Choice* choices, int64_t count, int64_t* ids, char* scratch) {
    const int64_t room = (choose_bytes(choices, count, 1) - 64) / 2;
    char* own = scratch + team.grab() * 2 * room;
    team.barrier();
    for (int64_t i; (i = team.grab()) < count;) ids[i] = choose_in(choices[i], (double*)own, (double*)(own + room));
}

}  // namespace
