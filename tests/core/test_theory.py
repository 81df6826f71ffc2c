"""The formulas against closed forms and against sums over all outcomes."""

from __future__ import annotations

import math

import pytest

from headstart.core.theory import Costs, best_k, break_even, expected_tokens, speedup


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_expected_tokens_of_a_constant_alpha(alpha: float, k: int) -> None:
    assert math.isclose(expected_tokens([alpha] * k), (1 - alpha ** (k + 1)) / (1 - alpha))


def test_expected_tokens_by_position_sums_over_outcomes() -> None:
    a = [0.9, 0.5, 0.2]
    outcomes = [(1 - a[0], 1), (a[0] * (1 - a[1]), 2), (a[0] * a[1] * (1 - a[2]), 3), (a[0] * a[1] * a[2], 4)]
    assert math.isclose(expected_tokens(a), sum(p * n for p, n in outcomes))


# The best k and the speed-up there, for linear costs: (alpha, c, s) worked out with the closed form.
@pytest.mark.parametrize(
    ("alpha", "c", "s", "k", "gain"),
    [(0.5, 0.02, 0, 4, 1.79), (0.7, 0.05, 0.06, 4, 1.93), (0.9, 0.1, 0, 10, 3.43), (0.8, 0.4, 0.06, 2, 1.27)],
)
def test_best_length_for_linear_costs(alpha: float, c: float, s: float, k: int, gain: float) -> None:
    found, value = best_k([alpha] * 32, Costs.linear(c, s))
    assert found == k and value == pytest.approx(gain, abs=0.006)


def test_no_draft_pays_when_it_costs_as_much_as_it_brings() -> None:
    assert best_k([0.3] * 8, Costs.linear(0.4, 0.1)) == (0, 1.0)


def test_width_curve_is_linear_between_and_beyond_its_points() -> None:
    costs = Costs({1: 10.0, 4: 13.0, 8: 21.0}, draft=0.5, overhead=2.0)
    assert [costs.pass_time(m) for m in (1, 2, 4, 6, 8, 10)] == [10, 11, 13, 17, 21, 25]
    assert costs.step(0) == 10 and costs.step(3) == 13 + 1.5 + 2
    assert Costs({1: 3.0}).step(5) == 3.0


def test_speedup_of_mixed_lengths_weighs_tokens_and_time() -> None:
    costs = Costs.linear(0.1, 0.05)
    a = [0.8, 0.6]
    tokens = 3 * expected_tokens(a) + 5 * 1 + 2 * expected_tokens(a[:1])
    assert math.isclose(speedup(a, {2: 3, 0: 5, 1: 2}, costs), tokens / (3 * costs.step(2) + 5 + 2 * costs.step(1)))


def test_break_even() -> None:
    assert break_even(1, Costs.linear(0.3, 0.1)) == pytest.approx(0.4)  # for k = 1 alpha must exceed c + s
    assert break_even(4, Costs.linear(0.0, 0.0)) == pytest.approx(0.0, abs=1e-9)
    assert break_even(4, Costs.linear(1.0, 0.5)) is None
    at = break_even(5, costs := Costs.linear(0.1, 0.1))
    assert at is not None and speedup([at] * 5, {5: 1}, costs) == pytest.approx(1.0)
