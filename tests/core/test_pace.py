"""Draft lengths against simulated machines: near the best constant length, and never much below plain decoding."""

from __future__ import annotations

import random

import pytest

from headstart.core.estimates import Acceptance, WidthCurve
from headstart.core.pace import Offer, Pace


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
    r, pace = random.Random(1), Pace()
    tokens = clock = 0.0
    for step in range(steps):
        ks = [constant if constant is not None else pace.choose(i, [Offer("d", most)])[1] for i in range(batch)]
        rows = sum(1 + k for k in ks)
        for i, k in enumerate(ks):
            stood = 0
            while stood < k and r.random() < alpha(stood, step):
                stood += 1
            tokens += 1 + stood
            pace.observe(i, "d", k, stood)
        took = seconds(rows) * r.lognormvariate(0, noise)
        pace.drafting_took("d", max(ks), draft * max(ks))
        pace.pass_took(rows, batch, took)
        pace.end_step()
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


def test_found_drafts_are_scored_without_a_pass():
    """While drafts are paused, what a lookup would have drafted is compared with the text, and speculation starts again at once."""
    pace, offer = Pace(), Offer("lookup", 8, found=True)
    pace.pass_took(1, 1, 0.05)
    pace.pass_took(9, 1, 0.20)
    text = [1, 2, 3]

    def step(draft, token):
        k = pace.choose(0, [offer])[1]
        pace.watch(0, offer, len(text), [draft] * 8)
        text.append(token)
        pace.compare(0, text)
        return k

    for _ in range(60):
        step(1, 2)
    for _ in range(200):
        assert step(1, 2) == 0, "found drafts need no probe"
    waited = next(i for i in range(200) if step(2, 2))
    assert 8 < waited < 150 and pace.runners[0].k


def test_watched_drafts_are_judged_until_one_fails_or_all_stood():
    pace, offer = Pace(), Offer("lookup", 3, found=True)
    pace.choose(0, [offer])
    pace.watch(0, offer, 2, [5, 6, 7])
    pace.watch(0, offer, 2, [8, 8, 8])  # one set at a time
    pace.compare(0, [1, 2, 5])
    assert pace.pools[offer.kind].tried == [1] and pace.pools[offer.kind].stood == [1]
    pace.compare(0, [1, 2, 5, 9])
    past = pace.pools[offer.kind]
    assert [round(x, 3) for x in past.tried] == [0.97, 0.97] and [round(x, 3) for x in past.stood] == [0.97, 0]
    pace.compare(0, [1, 2, 5, 9, 9])
    assert past is pace.pools[offer.kind] and len(past.tried) == 2, "judged once"
    short = Offer("lookup", 2, found=True)
    pace.watch(0, short, 4, [3, 4])
    pace.compare(0, [1, 2, 5, 9, 3, 4, 4])
    assert [round(x, 3) for x in pace.pools[short.kind].stood] == [0.97, 0.97] and not pace.runners[0].watched


def test_the_best_offer_is_chosen_by_what_it_gives_and_costs():
    """A dear model that is right against a lookup that often is: whichever gives more per second, at its own best length."""

    def chosen(lookup, model, draft):
        r, pace, used = random.Random(2), Pace(), []
        text = [0]
        for _ in range(600):
            drafts = [7 if r.random() < lookup else 8 for _ in range(8)]
            offers = [Offer("lookup", 8, found=True), Offer("model", 8)]
            which, k = pace.choose(0, offers)
            pace.watch(0, offers[0], len(text), drafts)
            good = drafts if which == 0 else [7 if r.random() < model else 8 for _ in range(k)]
            stood = next((i for i, t in enumerate(good[:k]) if t != 7), k)
            if which == 1 and k:
                pace.observe(0, "model", k, stood)
                pace.drafting_took("model", k, draft * k)
            text += [7] * (stood + 1)
            pace.compare(0, text)
            pace.pass_took(1 + k, 1, machine(0.02)(1 + k))
            pace.end_step()
            used.append((which, k))
        return [sum(w == i and k > 0 for w, k in used[200:]) / 400 for i in (0, 1)]

    assert chosen(0.9, 0.9, 0.005)[0] > 0.9, "of equals the cheaper"
    assert chosen(0.3, 0.9, 0.002)[1] > 0.9
    assert chosen(0.7, 0.75, 0.03)[0] > 0.9, "right more often, but too dear for it"


def test_without_adaptation_the_length_is_what_is_offered():
    pace = Pace()
    assert pace.choose(0, [Offer("model", 5)], adaptive=False) == (0, 5)
    for _ in range(50):
        pace.observe(0, "model", 5, 0)
    offers = [Offer("model", 5), Offer("lookup", 3, found=True)]
    assert pace.choose(0, offers, adaptive=False) == (1, 3) and pace.choose(0, [], adaptive=False) == (0, 0)


def test_acceptance_counts_only_what_was_judged():
    seen = Acceptance()
    seen.observe(4, 1)
    assert seen.tried == [1, 1] and seen.stood == [1, 0]
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


def test_a_curve_that_was_measured_before():
    """It tells the shape from the first step on; the passes tell the scale, and one that stumbles is soon forgotten."""
    told = {1: 0.05, 4: 0.10, 8: 0.15, 16: 0.30}
    curve = WidthCurve()
    curve.expect({})
    assert not curve.known
    curve.expect(told)
    assert curve.known == 4 and curve(1) == 0.05 and curve(6) == pytest.approx(0.125) and curve(31) == pytest.approx(0.55)
    curve.observe(5, 1.5 * curve(5))  # a width between, in a long context
    assert curve(1) == pytest.approx(0.075) and curve(16) == pytest.approx(0.45)

    curve = WidthCurve()
    curve.expect(told)
    for seconds in (0.2, *[0.05] * 40):  # the first step stumbles
        curve.observe(1, seconds)
    assert curve(1) == pytest.approx(0.05, rel=0.05) and curve(8) / curve(1) == pytest.approx(3, rel=0.15)
    for _ in range(200):  # what was told of 8 rows was wrong
        curve.observe(8, 0.25)
        curve.observe(1, 0.05)
    assert curve(8) == pytest.approx(0.25, rel=0.05) and curve(1) == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(("each", "drafts"), [(0.001, True), (0.049, False)])
def test_the_first_step_is_chosen_by_what_was_told(each, drafts):
    pace = Pace()
    pace.curve.expect({1: 0.05, 2: 0.05 + each, 16: 0.05 + 15 * each})
    k = pace.choose(0, [Offer("lookup", 8, found=True)])[1]
    assert (k > 0) == drafts, "no wide pass is needed to learn that it does not pay"


def test_a_request_without_drafts_is_left_alone():
    pace = Pace()
    assert pace.choose(0, []) == (0, 0)
    pace.forget(0)
    pace.forget(0)
    assert not pace.runners


def test_a_model_goes_on_while_it_is_sure():
    """Its own probabilities are taken at their word at first, then as they have proved; a further draft must be worth its time."""
    pace = Pace()
    assert pace.goes_on(0, "model", [0.1]), "nothing is known yet"
    pace.choose(0, [Offer("model", 8, asks=True)])
    pace.pass_took(1, 1, 0.05)
    pace.pass_took(9, 1, 0.07)
    pace.drafting_took("model", 4, 0.04)
    assert pace.goes_on(0, "model", [0.95, 0.95]) and not pace.goes_on(0, "model", [0.95, 0.05])
    assert pace.choose(0, [Offer("model", 8, asks=True)]) == (0, 8), "room for all: it stops by itself"
    for _ in range(60):
        pace.observe(0, "model", 2, 1, [0.95, 0.95])
    assert not pace.goes_on(0, "model", [0.95, 0.95]), "it was sure and wrong"
    for _ in range(60):
        pace.observe(0, "model", 1, 1, [0.3], stopped=True)
    kind = Offer("model", 8).kind
    assert pace.pools[kind].rates(2)[1] < 0.1, "what it did not dare did not stand either"


def test_catching_up_is_not_the_price_of_a_draft():
    """A model that was no use and then is: whenever it is tried it reads what it missed, and must be taken up all the same."""

    def used(told: bool) -> float:
        r, pace = random.Random(4), Pace()
        pace.draft_steps["model"] = 0.002
        drafted, last = [], 0
        for step in range(3000):
            _, k = pace.choose(0, [Offer("model", 4)])
            if k:
                missed, last = step - last, step
                pace.drafting_took("model", k, 0.002 * k + 0.001 * missed, told and missed > 5)
                stood = next((i for i in range(k) if r.random() > (0.05 if step < 1000 else 0.8)), k)
                pace.observe(0, "model", k, stood)
            pace.pass_took(1 + k, 1, 0.02 * (1 + 0.05 * k))
            pace.end_step()
            drafted.append(k > 0)
        return sum(drafted[2000:]) / 1000

    assert used(told=True) > 0.9 > 0.1 > used(told=False)


def test_what_a_model_takes_to_catch_up_tells_at_most_that_a_draft_is_cheaper():
    pace = Pace()
    pace.drafting_took("model", 2, 0.9, behind=True)
    assert not pace.draft_steps, "after a prompt nothing is known yet"
    pace.drafting_took("model", 2, 0.04)
    pace.drafting_took("model", 2, 0.9, behind=True)
    assert pace.draft_steps == {"model": 0.02} and pace.drafting == pytest.approx(1.84)
    pace.drafting_took("model", 2, 0.02, behind=True)
    assert pace.draft_steps["model"] == pytest.approx(0.015)


def test_in_a_large_batch_those_that_draft_nothing_look_now_and_then():
    pace = Pace()
    for i in range(32):
        pace.choose(i, [])
    looks = [[pace.looks(i, length) for length in range(10)] for i in range(32)]
    assert all(sum(row) == 2 for row in looks) and sum(row[0] for row in looks) < 8, "not all in the same step"
    pace.pass_took(32, 32, 0.1)
    pace.choose(3, [Offer("lookup", 4, found=True)])
    assert all(pace.looks(3, length) for length in range(10)) and pace.looks(99, 1)
    alone = Pace()
    alone.choose(0, [])
    assert all(alone.looks(0, length) for length in range(10))


def test_a_model_that_was_never_chosen_is_tried():
    """Where a lookup is expected to be better from the start, too: what nobody tried nobody knows."""
    pace, offers = Pace(), [Offer("lookup", 8, found=True, prior=0.9), Offer("model", 8)]
    used = []
    for step in range(60):
        which, k = pace.choose(0, offers)
        used.append(which if k else None)
        pace.watch(0, offers[0], step, [7] * 8)
        pace.compare(0, [7] * (step + 1))
        pace.pass_took(1 + k, 1, 0.05 + 0.001 * k)
        pace.end_step()
    assert used.count(0) > 40 and used.count(1) > 0
