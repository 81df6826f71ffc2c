"""The formulas against closed forms and against sums over all outcomes."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from headstart.core.theory import (
    Costs,
    alpha_bounds,
    batch_speedup,
    best_k,
    break_even,
    ceiling,
    divergence,
    expected_tokens,
    free_rows,
    interpolate,
    overlap,
    paying_batches,
    shared_noise,
    speedup,
    transport_ceiling,
)


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


def test_interpolate_between_and_beyond() -> None:
    assert [interpolate([1, 3], [10, 14], x) for x in (0, 1, 2, 3, 5)] == [8, 10, 12, 14, 18]
    assert interpolate([4], [7.0], 9) == 7.0


def test_no_speedup_exceeds_its_ceiling() -> None:
    r = random.Random(0)
    for _ in range(300):
        alpha, k, costs = r.random(), r.randint(1, 12), Costs.linear(r.random() / 2, r.random() / 2, r.random() / 2)
        assert speedup([alpha] * k, {k: 1}, costs) <= ceiling(costs, alpha, k) + 1e-12
    assert ceiling(Costs.linear(0.0, 0.06)) == pytest.approx(1 / 0.06)  # the verify slope alone caps the gain
    assert ceiling(Costs.linear(0.0, 0.0), 0.8) == pytest.approx(5) and ceiling(Costs.linear(0.0, 0.0), 0.8, 2) == 3


def test_drafts_stop_paying_where_passes_are_bound_by_arithmetic() -> None:
    # Free up to 150 rows, then in proportion: 4 drafts of alpha .7 give 2.77 tokens for up to 5 times the time.
    gain = lambda b: batch_speedup(b, [0.7] * 4, lambda rows: max(1.0, rows / 150), lambda b: 0.02)  # noqa: E731
    assert gain(1) == pytest.approx(expected_tokens([0.7] * 4) / 1.08)
    assert paying_batches(gain) == [(1, 80)] and gain(80) > 1 >= gain(81)
    assert paying_batches(lambda b: 2.0) == [(1, 4096)] and paying_batches(lambda b: 0.9) == []
    assert paying_batches(lambda b: 1.0 + (b in (1, 2, 5)), 6) == [(1, 2), (5, 5)]
    assert round(free_rows(312e12, 2.039e12, 2)) == 153 and round(free_rows(989e12, 3.35e12, 2)) == 295  # A100, H100 in bf16


def _law(r: random.Random, size: int) -> list[float]:
    w = [r.random() ** 3 for _ in range(size)]
    return [x / sum(w) for x in w]


def test_bounds_by_divergence_hold_and_neither_is_needless() -> None:
    r, sharper = random.Random(1), set()
    for _ in range(400):
        p, q = _law(r, 6), _law(r, 6)
        for kl in (divergence(p, q), divergence(q, p)):
            pinsker, huber = alpha_bounds(kl)
            assert max(pinsker, huber) <= overlap(p, q) + 1e-12
            sharper.add(pinsker > huber)
    assert sharper == {True, False}
    for kl, pinsker, huber in ((0.05, 0.842, 0.779), (0.1, 0.776, 0.692), (0.5, 0.5, 0.373), (2, 0.0, 0.070)):
        assert alpha_bounds(kl) == (pytest.approx(pinsker, abs=6e-4), pytest.approx(huber, abs=6e-4))
    assert divergence([0.5, 0.5], [1.0, 0.0]) == math.inf and alpha_bounds(math.inf) == (0.0, 0.0)


def test_divergence_ranks_drafts_wrongly() -> None:
    p, a, b = (0.5, 0.48, 0.02), (0.5, 0.4999999, 0.0000001), (0.27, 0.7, 0.03)
    assert divergence(p, a) > divergence(p, b) and overlap(p, a) > overlap(p, b)


def test_shared_noise() -> None:
    p, q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)
    assert shared_noise(p, q) == pytest.approx(0.6308, abs=5e-5) and overlap(p, q) == pytest.approx(0.7)
    r = random.Random(2)
    for _ in range(100):
        p, q = _law(r, 5), _law(r, 5)
        alpha = overlap(p, q)
        assert alpha / (2 - alpha) - 1e-12 <= shared_noise(p, q) <= alpha + 1e-12
        races = [[r.expovariate(1) for _ in p] for _ in range(300)]
        alike = sum(min(range(5), key=lambda v: e[v] / p[v]) == min(range(5), key=lambda v: e[v] / q[v]) for e in races) / 300
        assert abs(alike - shared_noise(p, q)) < 0.12


def _best_coupling(p: list[float], q: list[float], n: int) -> float:
    """The greatest chance that a draw of p is among n draws of q, over all joint laws: a linear program."""
    linprog = pytest.importorskip("scipy.optimize", exc_type=ImportError).linprog  # not there where the core is tested alone

    size = len(p)
    drafts = list(itertools.product(range(size), repeat=n))
    pairs = [(x, y) for x in drafts for y in range(size)]
    rows = [[float(x == d) for x, _ in pairs] for d in drafts] + [[float(y == v) for _, y in pairs] for v in range(size)]
    right = [math.prod(q[v] for v in d) for d in drafts] + p
    # The last equation follows from the others, and rounding must not make it contradict them.
    return -linprog([-float(y in x) for x, y in pairs], A_eq=rows[:-1], b_eq=right[:-1]).fun


def test_the_ceiling_of_several_drafts_is_that_of_the_best_coupling() -> None:
    r = random.Random(3)
    for _ in range(12):
        p, q = _law(r, 3), _law(r, 3)
        assert transport_ceiling(p, q, 1) == pytest.approx(overlap(p, q))
        for n in (2, 3):
            assert transport_ceiling(p, q, n) == pytest.approx(_best_coupling(p, q, n), abs=1e-7)
    assert transport_ceiling([0.5, 0.5], [1.0, 0.0], 4) == pytest.approx(0.5)  # what q never drafts is never kept
