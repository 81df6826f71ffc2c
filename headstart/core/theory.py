"""What speculation should give: expected tokens per pass, speed-up, the best draft length, where it stops paying; and what the
distance between two laws says about it.

Knows numbers only, on the standard library. `acceptance` is conditional and by position: acceptance[i] is the chance that draft i
stands given that all before it stood. A constant alpha is [alpha] * k. Times may be in any one unit. p is the target's law, q the
draft's, alpha = sum min(p, q).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass


def expected_tokens(acceptance: Seq[float]) -> float:
    """Tokens that a pass over these drafts yields on average: 1 + sum over j of a_1 ... a_j.

    For constant alpha this is (1 - alpha^(k+1)) / (1 - alpha): Leviathan et al. 2211.17192, equation 1.
    """
    total = run = 1.0
    for a in acceptance:
        run *= a
        total += run
    return total


def interpolate(xs: Seq[float], ys: Seq[float], x: float) -> float:
    """A curve through points of ascending x: linear between them and, by the first and last piece, beyond them."""
    if len(xs) == 1:
        return ys[0]
    right = min(max(bisect_left(xs, x), 1), len(xs) - 1)
    a, b = xs[right - 1], xs[right]
    return ys[right - 1] + (ys[right] - ys[right - 1]) * (x - a) / (b - a)


@dataclass(frozen=True)
class Costs:
    """What a step costs. `width`: time T(m) of a target pass by its rows m, at one row at least; linear between and beyond
    the given points. `draft`: time per draft. `overhead`: what a step with drafts costs beside these."""

    width: Mapping[int, float]
    draft: float = 0.0
    overhead: float = 0.0

    @classmethod
    def linear(cls, draft: float, slope: float, overhead: float = 0.0) -> Costs:
        """Costs relative to a pass of one row: `draft` (c) per draft, `slope` (s) for each further row of the pass."""
        return cls({1: 1.0, 2: 1.0 + slope}, draft, overhead)

    def pass_time(self, rows: float) -> float:
        """T(rows)."""
        points = sorted(self.width)
        return interpolate(points, [self.width[m] for m in points], rows)

    def step(self, k: int) -> float:
        """Time of a step with k drafts: T(k + 1) + k draft + overhead; without drafts, T(1)."""
        return self.pass_time(k + 1) + (k * self.draft + self.overhead if k else 0.0)


def speedup(acceptance: Seq[float], lengths: Mapping[int, float], costs: Costs) -> float:
    """Tokens per time of steps of several draft lengths, over that of plain decoding, one token per T(1).

    lengths: how many steps (or which share of them) had that many drafts; {k: 1} for a fixed k. With linear costs and
    one k this is Leviathan et al. 2211.17192, theorem 3.8, the verify slope added.
    """
    tokens = sum(n * expected_tokens(acceptance[:k]) for k, n in lengths.items())
    time = sum(n * costs.step(k) for k, n in lengths.items())
    return tokens * costs.step(0) / time


def best_k(acceptance: Seq[float], costs: Costs) -> tuple[int, float]:
    """The draft length 0..len(acceptance) with the greatest speed-up, and that speed-up; 0 is plain decoding."""
    return max(((k, speedup(acceptance, {k: 1}, costs)) for k in range(len(acceptance) + 1)), key=lambda pair: pair[1])


def break_even(k: int, costs: Costs) -> float | None:
    """The constant alpha at which k drafts a step are as fast as none; None when no acceptance could make up the cost."""
    if speedup([1.0] * k, {k: 1}, costs) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):  # speed-up grows with alpha, so halving finds the border
        middle = (low + high) / 2
        low, high = (low, middle) if speedup([middle] * k, {k: 1}, costs) >= 1 else (middle, high)
    return high


def ceiling(costs: Costs, alpha: float = 1.0, k: int = 1 << 20) -> float:
    """What no speed-up of a chain of at most k drafts exceeds: k + 1 tokens a pass, 1 / (1 - alpha), and 1 / (c + s) even at alpha = 1.

    The last is for costs linear at the origin: c + s is what the first draft adds, in plain passes.
    """
    each = (costs.step(1) - costs.overhead) / costs.step(0) - 1
    return min(k + 1, 1 / (1 - alpha) if alpha < 1 else math.inf, 1 / each if each > 0 else math.inf)


def batch_speedup(batch: int, acceptance: Seq[float], pass_time: Callable[[int], float], draft_time: Callable[[int], float]) -> float:
    """Speed-up of `batch` sequences that each draft k = len(acceptance) tokens, over the same batch without drafts.

    pass_time(rows): of a target pass over that many rows in all. draft_time(batch): of one draft token for each sequence.
    A batch makes passes wider, and wide passes are no longer bound by reading the weights: this is why drafts stop paying.
    """
    k = len(acceptance)
    return pass_time(batch) * expected_tokens(acceptance) / (pass_time(batch * (k + 1)) + k * draft_time(batch))


def paying_batches(gain: Callable[[int], float], limit: int = 4096) -> list[tuple[int, int]]:
    """The stretches (first, last) of batch sizes 1..limit at which `gain(batch)` is above 1; the end of one is a crossover.

    Usually one from 1 on. Experts make it two (few rows choose few experts, so further rows are dear at first), and long contexts
    make the last one endless, since KV is read once for all rows of a sequence.
    """
    out: list[tuple[int, int]] = []
    for batch in range(1, limit + 1):
        if gain(batch) > 1:
            out = [*out[:-1], (out[-1][0], batch)] if out and out[-1][1] == batch - 1 else [*out, (batch, batch)]
    return out


def free_rows(operations: float, bandwidth: float, bytes_per_weight: float) -> float:
    """Rows up to which a pass is bound by reading the weights: each takes 2 operations a weight, so m* = F bytes / (2 BW).

    operations: per second, bandwidth: bytes per second (the roofline of Williams et al. 2009).
    """
    return operations * bytes_per_weight / (2 * bandwidth)


# -- two laws ------------------------------------------------------------------------------------------------------


def overlap(p: Seq[float], q: Seq[float]) -> float:
    """alpha = sum min(p, q): how often rejection sampling keeps a draft of q. 1 - alpha is the total variation distance."""
    return sum(min(a, b) for a, b in zip(p, q, strict=True))


def divergence(p: Seq[float], q: Seq[float]) -> float:
    """KL(p, q) = sum p ln(p / q); infinite where q leaves out what p allows."""
    return sum(a * math.log(a / b) if b else math.inf for a, b in zip(p, q, strict=True) if a)


def shared_noise(p: Seq[float], q: Seq[float]) -> float:
    """How often the exponential races of p and q on the same noise choose alike: sum_i 1 / sum_j max(p_j / p_i, q_j / q_i).

    At least (1 - TV) / (1 + TV): Daliri, Musco, Suresh 2408.07978. The rule `match` keeps a sampled draft this often.
    """
    both = [(a, b) for a, b in zip(p, q, strict=True) if a and b]
    return sum(1 / sum(max(x / a, y / b) for x, y in zip(p, q, strict=True)) for a, b in both)


def alpha_bounds(divergence: float) -> tuple[float, float]:
    """What KL(p, q), or KL(q, p), says about alpha: at least this by Pinsker, at least this by Bretagnolle and Huber.

    TV <= sqrt(KL / 2), and TV <= sqrt(1 - exp(-KL)), which is never void. They hold for means over contexts too, since
    both right sides are concave. How large alpha is, KL does not say: it ranks drafts wrongly (docs/choose.md).
    """
    return max(0.0, 1 - math.sqrt(divergence / 2)), 1 - math.sqrt(-math.expm1(-divergence))


def transport_ceiling(p: Seq[float], q: Seq[float], n: int) -> float:
    """The most that n independent drafts of q at one position can be kept by any lossless rule.

    1 - max over sets H of [q(H)^n - p(H)]; the best H is a beginning of the tokens in ascending order of p / q
    (Hu et al. 2502.18779). n = 1 gives alpha.
    """
    order = sorted((v for v in range(len(p)) if q[v]), key=lambda v: p[v] / q[v])
    worst = target = draft = 0.0
    for v in order:
        target, draft = target + p[v], draft + q[v]
        worst = max(worst, draft**n - target)
    return 1 - worst
