"""Losslessness by exact enumeration: the joint law of the next k + 1 tokens equals the target's, with `==` on Fractions.

Also the facts the documentation states: acceptance probabilities, block against token, greedy as a special case.
"""

import itertools
from fractions import Fraction
from random import Random

import pytest
from prover import (
    RULES,
    SIZES,
    argmax,
    dropping,
    greedy,
    lossless,
    match_rule,
    mean_accepted,
    output_law,
    random_law,
    random_model,
    sampled,
    silent,
    step_law,
    target_law,
)

from headstart.core.acceptance import (
    accept_block,
    accept_prefix,
    block_weights,
    pick,
    residual,
    verify_block,
    verify_match,
    verify_token,
    without,
)
from headstart.core.types import Verdict

F = Fraction


def pairs(size: int, k: int, count: int):
    """Random context-dependent targets and drafts, some with impossible tokens."""
    rng = Random(f"{size}/{k}")
    return [(random_model(rng, size), random_model(rng, size)) for _ in range(count)]


def one_hot(token: int, size: int) -> list[Fraction]:
    return [F(int(v == token)) for v in range(size)]


# The output law


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "k"), SIZES)
def test_sampled_drafts(rule, size, k):
    """Drafts drawn from the reported q: the output law is the target's."""
    for p, q in pairs(size, k, 6):
        assert lossless(RULES[rule], p, sampled(q), k)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "k"), SIZES)
@pytest.mark.parametrize("how", ["drawn", "argmax", "drops its poor drafts"])
def test_point_masses(rule, size, k, how):
    """No law reported: lossless however the drafts were chosen, dropping a draft for its own low q included."""
    for p, q in pairs(size, k, 2):
        drafter = {"drawn": silent(sampled(q)), "argmax": greedy(q), "drops its poor drafts": dropping(q, F(1, 3), reports=False)}[how]
        assert lossless(RULES[rule], p, drafter, k)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "k"), SIZES)
def test_one_hot_law_reported(rule, size, k):
    """A greedy drafter that truthfully reports a one-hot law is lossless too."""
    for p, q in pairs(size, k, 3):
        assert lossless(RULES[rule], p, sampled(lambda prefix, q=q: one_hot(argmax(q(prefix)), size)), k)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "k"), SIZES)
def test_stop_before_the_draw_by_the_shape_of_q(rule, size, k):
    """R3: no further draft where max q is poor. Lengths from 0 to k occur."""
    lengths = set()
    for p, q in pairs(size, k, 12):
        drafter = sampled(q, stop=lambda prefix, q=q: max(q(prefix)) < F(11, 20))
        lengths |= {len(drafts) for _, drafts, _ in drafter(k)}
        assert lossless(RULES[rule], p, drafter, k)
    assert {0, k} <= lengths


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "k"), SIZES)
def test_stop_after_the_draw_keeping_the_draft(rule, size, k):
    """R3: an arbitrary stopping rule of the drafts so far, the last one kept. Lengths from 1 to k occur."""
    lengths = set()
    for n, (p, q) in enumerate(pairs(size, k, 4)):
        drafter = sampled(q, stop=lambda prefix, n=n: bool(prefix) and Random(f"{n}{prefix}").random() < 0.5)
        lengths |= {len(drafts) for _, drafts, _ in drafter(k)}
        assert lossless(RULES[rule], p, drafter, k)
    assert lengths == set(range(1, k + 1))


@pytest.mark.parametrize("rule", RULES)
def test_no_drafts_is_plain_sampling(rule):
    """k = 0 emits one token with the target's law."""
    p, q = pairs(3, 0, 1)[0]
    assert output_law(RULES[rule], p, sampled(q), 0) == target_law(p, 1)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_draft_equal_to_target_is_always_accepted(rule):
    """p = q keeps every draft, with no mass left for a residual."""
    p, _ = pairs(3, 3, 1)[0]
    assert mean_accepted(RULES[rule], p, sampled(p), 3) == 3
    assert lossless(RULES[rule], p, sampled(p), 3)


# How many drafts are kept


def test_acceptance_at_one_position():
    """Rejection: sum min(p, q) = 1 - TV. Point mass: p(x). Independent match: sum p q. Greedy match: p(argmax q)."""
    rng = Random(1)
    for _ in range(30):
        a, b = random_law(rng, 3), random_law(rng, 3)
        p, q = (lambda _, a=a: a), (lambda _, b=b: b)
        total_variation = sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2
        expected = sum(min(x, y) for x, y in zip(a, b, strict=True))
        assert mean_accepted(verify_token, p, sampled(q), 1) == expected == 1 - total_variation
        assert mean_accepted(verify_block, p, sampled(q), 1) == expected
        assert mean_accepted(verify_token, p, greedy(q), 1) == a[argmax(b)]
        assert mean_accepted(match_rule, p, sampled(q), 1) == sum(x * y for x, y in zip(a, b, strict=True))
        assert mean_accepted(match_rule, p, greedy(q), 1) == a[argmax(b)]


def test_block_example():
    """P = (1/3, 2/3), Q = (2/3, 1/3), k = 2: 10/9 drafts by token, 11/9 by block."""
    p, q = (lambda _: [F(1, 3), F(2, 3)]), (lambda _: [F(2, 3), F(1, 3)])
    assert mean_accepted(verify_token, p, sampled(q), 2) == F(10, 9)
    assert mean_accepted(verify_block, p, sampled(q), 2) == F(11, 9)


@pytest.mark.parametrize(("size", "k"), SIZES)
def test_block_is_never_shorter(size, k):
    """Expected drafts kept: block >= token on every model, and more on some as soon as k > 1."""
    gains = [mean_accepted(verify_block, p, sampled(q), k) - mean_accepted(verify_token, p, sampled(q), k) for p, q in pairs(size, k, 8)]
    assert min(gains) >= 0
    assert (max(gains) > 0) == (k > 1)


@pytest.mark.parametrize(("size", "k"), SIZES)
def test_block_equals_token_for_point_masses(size, k):
    """A one-hot q, reported or not, is kept equally long by both rules."""
    for p, q in pairs(size, k, 3):
        hot = sampled(lambda prefix, q=q: one_hot(argmax(q(prefix)), size))
        lengths = {mean_accepted(rule, p, drafter, k) for rule in (verify_token, verify_block) for drafter in (hot, greedy(q))}
        assert len(lengths) == 1


def test_block_keeps_i_drafts_with_probability_w_i():
    """The invariant behind block verification, given the first i drafts: P(kept >= i) = w_i."""
    for p, q in pairs(3, 2, 5):
        for first in range(3):
            if not q(())[first]:
                continue
            kept = sum(
                weight * chance
                for weight, drafts, laws in sampled(q)(2)
                for chance, verdict in step_law(verify_block, p, drafts, laws)
                if drafts[0] == first and verdict.accepted >= 1
            )
            assert kept / q(())[first] == block_weights([p(())[first]], [q(())[first]])[1]


# Greedy, match, and single functions


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_greedy_is_argmax_match(rule):
    """A one-hot p turns either rule into "equal to the argmax, else emit the argmax", at any uniforms."""
    rng = Random(2)
    kept = set()
    for _ in range(400):
        k = rng.randint(0, 4)
        best = [rng.randrange(3) for _ in range(k + 1)]
        q = [random_law(rng, 3) for _ in range(k)]
        drafts = [rng.choice([v for v in range(3) if law[v]]) for law in q]
        u = [rng.choice((0.0, rng.random(), 1 - 2.0**-53)) for _ in range(k + 1)]
        expected = verify_match(best, drafts)
        kept.add(expected.accepted)
        p = [one_hot(x, 3) for x in best]
        assert rule(p, drafts, q, u[:k], u[k]) == expected
        assert rule(p, drafts, None, u[:k], u[k]) == expected
    assert len(kept) > 3


def test_match_is_plain_sampling_with_the_same_uniforms():
    """Path by path, not only in law: what `match` emits is what sampling without drafts emits."""
    rng = Random(3)
    p, q = random_model(rng, 3), random_model(rng, 3)
    rejected = accepted = 0
    for _ in range(300):
        u = [rng.random() for _ in range(4)]
        plain: tuple[int, ...] = ()
        for v in u:
            plain = (*plain, pick(p(plain), v))
        k = rng.randint(0, 3)
        drafts: tuple[int, ...] = ()
        while len(drafts) < k:
            drafts = (*drafts, pick(q(drafts), rng.random()))
        verdict = match_rule([p(drafts[:i]) for i in range(k + 1)], drafts, None, u[:k], u[k])
        assert (*drafts[: verdict.accepted], verdict.tail) == plain[: verdict.accepted + 1]
        accepted, rejected = accepted + verdict.accepted, rejected + (verdict.accepted < k)
    assert accepted and rejected


def test_point_masses_are_rejected_as_often_by_match():
    """The joint law of how many stand and of the tail is one, so that drafts without a law may be judged by the target's own draws."""
    rng = Random(5)
    for k, size in itertools.product((0, 1, 2, 3), (2, 3)):
        p = random_model(rng, size)
        for drafts in itertools.product(range(size), repeat=k):
            laws = []
            for rule in (verify_token, verify_block, match_rule):
                law: dict[Verdict, Fraction] = {}
                for chance, verdict in step_law(rule, p, drafts, None):
                    law[verdict] = law.get(verdict, F(0)) + chance
                laws.append({verdict: chance for verdict, chance in law.items() if chance})
            assert laws[0] == laws[1] == laws[2] and sum(laws[0].values()) == 1


def test_floats_and_fractions_agree():
    """The same verdict from floats as from Fractions at random uniforms."""
    rng = Random(4)
    for _ in range(300):
        p, q = [random_law(rng, 3) for _ in range(4)], [random_law(rng, 3) for _ in range(3)]
        drafts = [rng.choice([v for v in range(3) if law[v]]) for law in q]
        u = [rng.random() for _ in range(4)]
        as_float = [[float(x) for x in law] for law in p], drafts, [[float(x) for x in law] for law in q]
        for rule in (verify_token, verify_block):
            assert rule(*as_float, u[:3], u[3]) == rule(p, drafts, q, u[:3], u[3])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_forced_rejection_takes_the_residual_of_its_own_row(position):
    """A draft of probability 0 at 0, 1, 2 in turn: the tail comes from that row, which alone allows token 2 or 3."""
    p = [[F(1), F(0), F(0), F(0)] for _ in range(4)]
    p[position] = [F(0), F(0), F(1, 2), F(1, 2)]
    q = [[F(1, 2), F(1, 2), F(0), F(0)] for _ in range(3)]
    for rule in (verify_token, verify_block):
        for law in (q, None):
            assert rule(p, [0, 0, 0], law, [F(1, 4)] * 3, F(1, 4)) == Verdict(position, 2)
            assert rule(p, [0, 0, 0], law, [F(1, 4)] * 3, F(3, 4)) == Verdict(position, 3)


def test_accept_prefix_is_strict():
    """u = 0 never keeps a token of probability 0; u next to 1 keeps one with p = q."""
    assert accept_prefix([0.0], [0.5], [0.0]) == 0
    assert accept_prefix([0.5, 0.0, 0.5], [0.5, 1, 0.5], [1 - 2.0**-53, 0.0, 0.0]) == 1
    assert accept_prefix([], [], []) == 0


def test_accept_block_scans_all_positions():
    """The largest position that passes counts, though an earlier one failed; u = 0 does not pass h = 0."""
    assert accept_block([1, F(1, 2), F(1, 2)], [F(1, 2)], [F(9, 10), F(1, 10)]) == 2
    assert accept_block([1, 0, 0], [0], [0, 0]) == 0
    assert accept_block([1, 1], [], [0.999]) == 1
    assert accept_block([1], [], []) == 0


def test_pick():
    """Inverse CDF; zero weights are never picked, at either end; a product rounded up to the total stays inside."""
    assert [pick([F(1, 4), F(1, 2), F(1, 4)], F(n, 8)) for n in range(8)] == [0, 0, 1, 1, 1, 1, 2, 2]
    assert pick([0.0, 0.3, 0.0, 0.7, 0.0], 0.0) == 1
    assert pick([0.0, 0.3, 0.0, 0.7, 0.0], 1 - 2.0**-53) == 3
    assert pick([0.1] * 10 + [0.0], 1.0) == 9


def test_residuals():
    """max(w p - q, 0), p without the draft, and p itself where nothing is left."""
    p, q = [F(1, 2), F(1, 2), F(0)], [F(1, 4), F(1, 4), F(1, 2)]
    assert residual(p, q) == [F(1, 4), F(1, 4), 0]
    assert residual(p, q, F(3, 4)) == [F(1, 8), F(1, 8), 0]
    assert residual(p, p) == p
    assert without(p, 0) == [0, F(1, 2), 0]
    assert without([0, 1, 0], 1) == [0, 1, 0]


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_zero_residual_falls_back_to_p(rule):
    """p = q to rounding and a rejection forced by q a hair above: a token of p, never id 0 (impossible here)."""
    p, q = [[0.0, 0.5, 0.5]] * 2, [[0.0, 0.5 + 2.0**-52, 0.5 + 2.0**-52]]
    u = 1 - 2.0**-53
    assert rule(p, [1], q, [u], 0.1) == Verdict(0, 1)
    assert rule(p, [1], q, [u], 0.9) == Verdict(0, 2)
