"""Draft lengths against simulated machines: near the best constant length, and never much below plain decoding."""

from __future__ import annotations

import random

import pytest

from headstart.core.pace import Acceptance, Pace, WidthCurve


def machine(slope: float, cliff: int = 10**9, cost: float = 2.0):
    """Seconds of a pass by its rows: a base, a slope, and `cost` times that from `cliff` rows on."""
    return lambda rows: 0.05 * (1 + slope * (rows - 1)) * (cost if rows >= cliff else 1.0)


def simulate(
    alpha,
    seconds,
    draft: float = 0.0,
    *,
    most: int = 8,
    batch: int = 1,
    steps: int = 3000,
    constant: int | None = None,
    noise=0.0,
    free=False,
):
    """Tokens per second of `steps` steps. `alpha(i, step)`: chance that draft i stands. `draft`: seconds per draft token."""
    r, pace = random.Random(1), Pace(free=free)
    tokens = clock = 0.0
    for step in range(steps):
        ks = [constant if constant is not None else pace.choose(i, most) for i in range(batch)]
        rows = sum(1 + k for k in ks)
        for i, k in enumerate(ks):
            stood = 0
            while stood < k and r.random() < alpha(stood, step):
                stood += 1
            tokens += 1 + stood
            pace.observe(i, k, stood)
        took = seconds(rows) * r.lognormvariate(0, noise)
        pace.drafting_took(max(ks), draft * max(ks))
        pace.pass_took(rows, batch, took)
        clock += took + draft * max(ks)
    return tokens / clock


CASES = {
    "good draft, flat machine": (lambda i, t: 0.85, machine(0.01), 0.002),
    "good draft, steep machine": (lambda i, t: 0.85, machine(0.4), 0.002),
    "poor draft": (lambda i, t: 0.2, machine(0.1), 0.01),
    "hopeless draft": (lambda i, t: 0.0, machine(0.3), 0.02),
    "expensive draft": (lambda i, t: 0.8, machine(0.02), 0.04),
    "falling with position": (lambda i, t: max(0.0, 0.9 - 0.2 * i), machine(0.05), 0.003),
    "compute-bound": (lambda i, t: 0.9, machine(1.0), 0.002),
    "cliff": (lambda i, t: 0.8, machine(0.02, cliff=5, cost=2.5), 0.002),
}


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_near_the_best_constant_length_and_not_below_plain(case, batch, noise):
    alpha, seconds, draft = CASES[case]
    static = [simulate(alpha, seconds, draft, batch=batch, constant=k, steps=1000) for k in range(9)]
    own = simulate(alpha, seconds, draft, batch=batch, noise=noise)
    plain = batch / seconds(batch)
    own *= 1.0 if not noise else 2.718281828 ** (noise**2 / 2)  # the mean of the noise
    assert own > 0.97 * plain
    assert own > 0.93 * max(static), (own, static)


def test_a_draft_that_gets_good_is_found_again():
    """Nothing stands for a while, then everything does: the pause ends by itself."""
    turn = 1500
    own = simulate(lambda i, t: 0.0 if t < turn else 0.95, machine(0.05), 0.002, steps=4000)
    plain = 1 / machine(0.05)(1)
    assert own > 1.8 * plain


def test_free_drafts_are_scored_without_a_pass():
    """While drafts are paused, what a lookup would have drafted is compared with the text, and speculation starts again at once."""
    pace = Pace(free=True)
    pace.pass_took(1, 1, 0.05)
    pace.pass_took(9, 1, 0.20)
    for _ in range(60):
        pace.choose(0, 8)
        pace.observe(0, 8, 0)
    for _ in range(200):
        assert pace.choose(0, 8) == 0, "free drafts need no probe"
        pace.pass_took(1, 1, 0.05)
    text = [1, 2, 3]
    for _ in range(200):
        if pace.choose(0, 8):
            break
        pace.watch(0, len(text), [(len(text) + i) % 7 for i in range(8)])
        text.append(len(text) % 7)
        pace.compare(0, text)
    assert 8 < len(text) < 150 and pace.runners[0].k


def test_watched_drafts_are_settled_when_one_fails_or_all_stood():
    pace = Pace(free=True)
    pace.choose(0, 4)
    pace.watch(0, 2, [5, 6, 7])
    pace.compare(0, [1, 2, 5])
    assert not pace.pools[""].tried
    pace.compare(0, [1, 2, 5, 9])
    assert pace.pools[""].tried == [1, 1, 0] and pace.pools[""].stood == [1, 0, 0]
    pace.watch(0, 4, [3, 4])
    pace.compare(0, [1, 2, 5, 9, 3, 4])
    assert pace.pools[""].stood[1] == 1


def test_acceptance_counts_only_what_was_judged():
    seen = Acceptance()
    seen.observe(4, 1)
    assert seen.tried == [1, 1, 0, 0] and seen.stood == [1, 0, 0, 0]
    for _ in range(300):
        seen.observe(4, 4)
    assert all(a > 0.97 for a in seen.rates(4))
    for _ in range(100):
        seen.observe(4, 0)
    assert seen.rates(4)[0] < 0.1, "the past fades"


def test_width_curve():
    curve = WidthCurve()
    for rows, seconds in ((1, 1.0), (5, 2.0), (9, 1.9)):
        for _ in range(3):
            curve.observe(rows, seconds)
    assert curve(1) == pytest.approx(1) and curve(3) == pytest.approx(1.5) and curve(9) == pytest.approx(2)
    assert curve(17) == pytest.approx(3) and curve(0.5) == pytest.approx(1)
    for _ in range(200):  # the machine gets three times slower; only one width is in use
        curve.observe(1, 3.0)
    assert curve(5) / curve(1) > 1.2, "an unused width must not look cheap"


def test_a_request_without_drafts_is_left_alone():
    pace = Pace()
    assert pace.choose(0, 0) == 0
    pace.forget(0)
    pace.forget(0)
    assert not pace.runners
