"""Ratios of sums over questions, with an interval: the speed-up of a whole workload, predicted or measured."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headstart.bench.stats import RESAMPLES


@dataclass(frozen=True)
class Pooled:
    """A ratio and its 95 % interval, None where one question cannot give one. Named as `bench.stats.Interval` is."""

    median: float
    low: float | None
    high: float | None
    questions: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def pooled(pairs: Seq[Seq[float]], seed: int = 0) -> Pooled | None:
    """sum a / sum b over (a, b) of each question, with a percentile bootstrap over questions (Efron 1979)."""
    values = np.array([p for p in pairs if p[1] > 0], dtype=float)
    if not len(values):
        return None
    whole = float(values[:, 0].sum() / values[:, 1].sum())
    if len(values) == 1:
        return Pooled(whole, None, None, 1)
    drawn = values[np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return Pooled(whole, float(low), float(high), len(values))
