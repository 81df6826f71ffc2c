// Drafts judged by the laws that they were drawn from (core/acceptance.py), and the token after them.
#pragma once
#include "sampling.hpp"

namespace {

// What the token after the drafts is drawn from: where a draft of law q has fallen what is left of p, max(w p - q, 0), else p itself,
// the shares of weights in their total.
struct Rest {
    const double* weights;  // [size]
    double total;
    int64_t size;
    const double* q;  // [size], or null
    double w;

    vd at(int64_t i) const {
        const vd p = entries(weights, i, size, 0.0) / total;
        return q ? biggest(all(0.0), p * w - entries(q, i, size, 0.0)) : p;
    }
};

// Sums of the blocks of what is left; returns that of all, added in their order.
static double sums_of(const Rest& rest, double* sums) {
    double all_of_it = 0;
    for (int64_t b = 0; b * BLOCK < rest.size; b++) {
        vd total = {};
        for (int64_t i = b * BLOCK; i < std::min(rest.size, (b + 1) * BLOCK); i += WIDE) total += rest.at(i);
        all_of_it += sums[b] = sum(total);
    }
    return all_of_it;
}

// The first entry at which the running sum passes u * mass (core/acceptance.py:pick), given the sums of blocks and of all. Never one of
// weight 0: where roundings keep the sum from passing, the last that has any.
static int64_t pick(const Rest& rest, const double* sums, double mass, double u) {
    const double target = u * mass;
    double run = 0, before = 0;  // behind this block, and in front of the one that is looked into
    int64_t block = 0, last = 0;
    for (int64_t b = 0; b * BLOCK < rest.size && run <= target; b++) {
        if (sums[b] > 0) block = b, before = run;
        run += sums[b];
    }
    for (int64_t i = block * BLOCK; i < std::min(rest.size, (block + 1) * BLOCK); i += WIDE) {
        const vd v = rest.at(i);
        for (int j = 0; j < WIDE; j++) {
            if (!(v[j] > 0)) continue;
            last = i + j;
            before += v[j];
            if (target < before) return last;
        }
    }
    return last;
}

// One draw from what is left, whose sums are given; from the law itself where nothing is (core/acceptance.py:residual).
static int64_t draw(Rest rest, double* sums, double mass, double u) {
    if (rest.q && !(mass > 0)) {
        rest.q = nullptr;
        mass = sums_of(rest, sums);
    }
    return pick(rest, sums, mass, u);
}

// core/acceptance.py:accept_block, the threshold of a position that is not the last.
INLINE double block_threshold(double w, double mass) {
    const double whole = mass + (1 - w);
    return whole > 0 ? mass / whole : 1;
}

// core/acceptance.py:verify_token and verify_block, one row after another, as far as they are needed. A row without a law ends its sequence:
// drafts in front of it are judged as if there were no more.
static Verdict judge(const Trial& t, double* weights, double* room) {
    const int64_t n = t.size;
    Verdict verdict = {0, -1};
    double w = 1;  // of block verification; where it is 0, no draft stands from here on
    for (int64_t i = 0; w > 0; i++) {
        const float* x = t.logits + i * t.stride;
        const auto [top, finite] = peak_of(x, n);
        const bool lawful = t.checked || finite, last = i == t.drafts || !lawful;
        if (last && t.block && i > 0 && !(t.uniforms[i - 1] < w)) break;
        if (!lawful) return {i, -1};

        Rest p = {weights, 1, n, last ? nullptr : t.laws + i * t.law_stride, w};
        if (filters_any(t.filters, n)) law_of_row(x, n, top, t.filters, weights, room);
        else p.total = weigh(x, n, top, t.filters.temperature, weights, t.block ? p.q : nullptr, last ? nullptr : x + t.stride);
        const double p_x = last ? 0 : weights[t.tokens[i]] / p.total, q_x = last ? 0 : p.q[t.tokens[i]];
        if (!last && !t.block && t.uniforms[i] * q_x < p_x) continue;

        const double mass = sums_of(p, room);
        if (last || i == 0 || !t.block || t.uniforms[i - 1] < block_threshold(w, mass))
            verdict = {i, draw(p, room, mass, t.uniforms[t.drafts])};
        if (last || !t.block) break;
        const double ratio = q_x > 0 ? w * p_x / q_x : 0;
        w = ratio < 1 ? ratio : 1;
    }
    return verdict;
}

int64_t judge_bytes(const Trial* trials, int64_t count, int threads) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) most = std::max(most, trials[i].size);
    return 2 * threads * most * sizeof(double);
}

void judge_of(Team& team, const Trial* trials, int64_t count, Verdict* verdicts, char* scratch) {
    const int64_t room = judge_bytes(trials, count, 1) / 2;
    char* own = scratch + team.grab() * 2 * room;
    team.barrier();
    for (int64_t i; (i = team.grab()) < count;) verdicts[i] = judge(trials[i], (double*)own, (double*)(own + room));
}

}  // namespace
