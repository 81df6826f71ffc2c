"""Intervals and the test of two samples: they must find what is there and leave alone what is not."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.bench.stats import median_ratio, same_law


def test_median_ratio_takes_a_question_as_one() -> None:
    got = median_ratio({"a": [1.0, 1.0, 1.0, 1.0], "b": [2.0], "c": [3.0]})
    assert got is not None and got.median == 2.0 and got.low == 1.0 and got.high == 3.0 and got.questions == 3
    assert median_ratio({}) is None
    one = median_ratio({"a": [1.0, 3.0]})
    assert one is not None and (one.median, one.low) == (2.0, None)


def test_the_interval_covers_the_median() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for i in range(100):
        got = median_ratio({j: [v] for j, v in enumerate(rng.lognormal(np.log(1.5), 0.3, 40))}, seed=i)
        assert got is not None and got.low is not None and got.high is not None
        covered += got.low <= 1.5 <= got.high
    assert 87 <= covered <= 100


def _draw(rng: np.random.Generator, law: np.ndarray, n: int) -> list[tuple[int, int]]:
    first = rng.choice(len(law), n, p=law)
    return [(int(a), int(b)) for a, b in zip(first, rng.choice(50, n), strict=True)]  # the second token is noise over rare pairs


def test_equal_laws_give_uniform_p_values() -> None:
    rng = np.random.default_rng(1)
    law = np.array([0.5, 0.3, 0.15, 0.05])
    p = [same_law(_draw(rng, law, 150), _draw(rng, law, 150), seed=i, shuffles=400) for i in range(100)]
    assert min(p) > 0.0 and 1 <= sum(v < 0.1 for v in p) <= 22


def test_a_bias_is_found_among_rare_pairs() -> None:
    rng = np.random.default_rng(2)
    p = same_law(_draw(rng, np.array([0.5, 0.3, 0.2]), 300), _draw(rng, np.array([0.3, 0.5, 0.2]), 300))
    assert p < 0.001
    with pytest.raises(ValueError):
        same_law([], [(1,)])
