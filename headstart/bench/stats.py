"""Statistics of a run: quantiles, a bootstrap interval over questions, and a test whether two samples have one law."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval; the interval is None where one question cannot give one."""

    median: float
    low: float | None
    high: float | None
    questions: int


def quantile(values: Seq[float], q: float) -> float | None:
    """The q-quantile, None of nothing."""
    return float(np.quantile(values, q)) if len(values) else None


def median_ratio(ratios: Mapping[Hashable, Seq[float]], seed: int = 0) -> Interval | None:
    """The median over questions of the median of each question's ratios, with a percentile bootstrap over questions.

    ratios: question -> its pairwise ratios (repeats, turns). Questions are drawn with replacement, because they are what
    varies from one workload to the next (Efron 1979); repeats of one question say nothing about another.
    """
    values = np.array([np.median(r) for r in ratios.values() if len(r)])
    if not len(values):
        return None
    middle = float(np.median(values))
    if len(values) == 1:
        return Interval(middle, None, None, 1)
    drawn = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(values[drawn], axis=1), (0.025, 0.975))
    return Interval(middle, float(low), float(high), len(values))


def same_law(a: Seq[tuple[int, ...]], b: Seq[tuple[int, ...]], seed: int = 0, shuffles: int = 5000) -> float:
    """p-value of the hypothesis that two samples of token tuples come from one law.

    For the law of the first token, of the first two, and so on, G = 2 sum n ln(n / expected) is taken, in standard deviations
    from its mean; the greatest of them is the statistic, so that a difference in a common beginning is not lost among
    rare tuples. Its law under the hypothesis comes from shuffling the pooled sample, which is exact for any counts
    (Fisher's permutation argument): no cell is too small.
    """
    if not a or not b:
        raise ValueError("both samples need at least one tuple")
    cells = sorted({*a, *b})
    at = {cell: i for i, cell in enumerate(cells)}
    first = np.bincount([at[t] for t in a], minlength=len(cells))
    total = first + np.bincount([at[t] for t in b], minlength=len(cells))
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(total, len(a), size=shuffles, method="marginals")
    sums = [_prefix_sums(cells, n) for n in range(1, max(map(len, cells)) + 1)]

    # Row 0 is what was seen; the others are what shuffling gives. All are standardised alike.
    counts = np.concatenate((first[None], drawn))
    share = len(a) / (len(a) + len(b))
    g = np.stack([_g(counts @ m, total @ m, share) for m in sums])  # [lengths, 1 + shuffles]
    spread = g.std(axis=1, keepdims=True)
    statistic = ((g - g.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)).max(axis=0)
    return float(np.mean(statistic >= statistic[0] - 1e-9))


def _prefix_sums(cells: Seq[tuple[int, ...]], length: int) -> np.ndarray:
    """[C, P]: which tuples begin with which tuple of `length`."""
    prefixes = sorted({c[:length] for c in cells})
    at = {p: i for i, p in enumerate(prefixes)}
    out = np.zeros((len(cells), len(prefixes)), dtype=np.int64)
    out[np.arange(len(cells)), [at[c[:length]] for c in cells]] = 1
    return out


def _g(counts: np.ndarray, total: np.ndarray, share: float) -> np.ndarray:
    """G of a two-row table: counts [S, C] of the first sample, total [C] of both, `share` of all that is the first."""
    rows = ((counts, share * total), (total - counts, (1 - share) * total))
    return sum((2 * np.sum(n * np.log(np.maximum(n, 1e-300) / expected), axis=1) for n, expected in rows), np.zeros(len(counts)))
