"""What speculation should give: expected tokens per pass, speed-up, the best draft length, and where it stops paying.

Knows numbers only. `acceptance` is conditional and by position: acceptance[i] is the chance that draft i stands given that
all before it stood. A constant alpha is [alpha] * k. Times may be in any one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def pass_time(self, rows: int) -> float:
        """T(rows)."""
        points = sorted(self.width)
        if len(points) == 1:
            return self.width[points[0]]
        right = next((i for i, m in enumerate(points) if m >= rows), len(points) - 1)
        a, b = points[max(right, 1) - 1], points[max(right, 1)]
        return self.width[a] + (self.width[b] - self.width[a]) * (rows - a) / (b - a)

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
