"""Negative controls: every known wrong algorithm goes through the same exact prover and must be found out.

A prover whose controls pass proves nothing. Each control differs from the real thing in one line.
"""

from fractions import Fraction
from random import Random

import pytest
from prover import dropping, greedy, lossless, output_law, random_model, sampled, target_law

from headstart.core.acceptance import accept_prefix, block_weights, pick, residual, verify_block, verify_token
from headstart.core.types import Verdict


def generic_pairs(size: int, count: int = 10):
    """Random targets and drafts in which every token is possible."""
    rng = Random(size)
    return [(random_model(rng, size, zeros=False), random_model(rng, size, zeros=False)) for _ in range(count)]


def biased(rule, drafter_of, size: int = 3, k: int = 2) -> int:
    """On how many of the ten models the prover finds the output law unlike the target's."""
    return sum(not lossless(rule, p, drafter_of(q), k) for p, q in generic_pairs(size))


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_the_real_rules_pass_on_the_same_models(rule):
    """Otherwise the failures below would say nothing."""
    assert biased(rule, sampled) == 0


# Wrong rules


def resamples_from_p(p, drafts, q, u, u_tail):
    """After a rejection draws from p instead of the residual."""
    kept = verify_token(p, drafts, q, u, u_tail).accepted
    return Verdict(kept, pick(p[kept], u_tail))


def keeps_the_rejected_token_possible(p, drafts, q, u, u_tail):
    """Point mass: after a rejection draws from p, the rejected draft included."""
    kept = verify_token(p, drafts, None, u, u_tail).accepted
    return Verdict(kept, pick(p[kept], u_tail))


def one_row_early(p, drafts, q, u, u_tail):
    """Judges each draft by the row before its own."""
    return verify_token([p[0], *p[:-1]], drafts, q, u, u_tail)


def one_row_late(p, drafts, q, u, u_tail):
    """Judges each draft by the row that has already been fed it."""
    return verify_token([*p[1:], p[-1]], drafts, q, u, u_tail)


def no_residual_threshold(p, drafts, q, u, u_tail):
    """One-sided acceptance p >= t, advertised as exact by several engines."""
    kept = 0
    while kept < len(drafts) and p[kept][drafts[kept]] >= Fraction(1, 3):
        kept += 1
    return Verdict(kept, pick(p[kept], u_tail))


def acceptance_noise_reused_for_the_tail(p, drafts, q, u, u_tail):
    """One uniform judges the last draft and then draws the tail."""
    return verify_token(p, drafts, q, u, u[-1])


def swapped(p, drafts, q, u, u_tail):
    """p and q the wrong way round in the test."""
    kept = accept_prefix([q[i][x] for i, x in enumerate(drafts)], [p[i][x] for i, x in enumerate(drafts)], u)
    return Verdict(kept, pick(p[kept] if kept == len(drafts) else residual(p[kept], q[kept]), u_tail))


def block_parts(p, drafts, q, u):
    """The weights w_0..w_k and whether u_i < h_i at each position."""
    k = len(drafts)
    w = block_weights([p[i][x] for i, x in enumerate(drafts)], [q[i][x] for i, x in enumerate(drafts)])
    passes = []
    for i in range(1, k + 1):
        z = sum(max(w[i] * a - b, 0) for a, b in zip(p[i], q[i], strict=True)) if i < k else 0
        h = w[k] if i == k else z / (z + 1 - w[i]) if z + 1 - w[i] else 1
        passes.append(u[i - 1] < h)
    return w, passes


def block_with_break(p, drafts, q, u, u_tail):
    """Stops scanning at the first position that fails."""
    w, passes = block_parts(p, drafts, q, u)
    kept = passes.index(False) if False in passes else len(drafts)
    return Verdict(kept, pick(p[kept] if kept == len(drafts) else residual(p[kept], q[kept], w[kept]), u_tail))


def block_with_token_residual(p, drafts, q, u, u_tail):
    """Takes max(p - q, 0) for the tail, the weight forgotten."""
    kept = verify_block(p, drafts, q, u, u_tail).accepted
    return Verdict(kept, pick(p[kept] if kept == len(drafts) else residual(p[kept], q[kept]), u_tail))


def block_with_token_acceptance(p, drafts, q, u, u_tail):
    """Accepts like the token rule and takes the block residual."""
    kept = verify_token(p, drafts, q, u, u_tail).accepted
    w = block_weights([p[i][x] for i, x in enumerate(drafts)], [q[i][x] for i, x in enumerate(drafts)])
    return Verdict(kept, pick(p[kept] if kept == len(drafts) else residual(p[kept], q[kept], w[kept]), u_tail))


@pytest.mark.parametrize(
    "rule",
    [resamples_from_p, one_row_early, one_row_late, no_residual_threshold, acceptance_noise_reused_for_the_tail, swapped, block_with_break],
)
def test_wrong_rule_is_found_out(rule):
    """Biased on every model of the ten."""
    assert biased(rule, sampled) == 10


@pytest.mark.parametrize("size", [2, 3])
def test_point_mass_must_zero_the_rejected_token(size):
    """Drawing the tail from p itself is biased toward the draft."""
    assert biased(keeps_the_rejected_token_possible, greedy, size) == 10


@pytest.mark.parametrize("rule", [block_with_token_residual, block_with_token_acceptance])
def test_block_residual_and_acceptance_go_together(rule):
    """Half of one rule and half of the other is biased; the effect is small and needs V = 3."""
    assert biased(rule, sampled) > 0


def test_token_residual_in_block_is_invisible_with_one_token_above_q():
    """With V = 2 a single token has p > q and the wrong residual is exact: why the enumeration uses V = 3."""
    assert biased(block_with_token_residual, sampled, size=2) == 0


def test_block_with_break_documented_cell():
    """p = (.4, .4, .2), q = (.1, .3, .6), two drafts: the break is off by .03 in one cell."""
    p = lambda _: [Fraction(4, 10), Fraction(4, 10), Fraction(2, 10)]  # noqa: E731
    q = lambda _: [Fraction(1, 10), Fraction(3, 10), Fraction(6, 10)]  # noqa: E731
    wrong, right = output_law(block_with_break, p, sampled(q), 2), target_law(p, 3)
    assert max(abs(wrong.get(t, 0) - right[t]) for t in right) > Fraction(1, 100)


# Wrong drafters


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_argmax_draft_with_softmax_law(rule):
    """The draft is the argmax, the reported law its softmax."""
    assert biased(rule, lambda q: greedy(q, reports=True)) == 10


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_draft_dropped_by_its_own_score(rule):
    """The drafter keeps only tokens it likes and still reports q (R3 broken); not reporting q is exact."""
    assert biased(rule, lambda q: dropping(q, Fraction(1, 3), reports=True)) >= 9
    assert biased(rule, lambda q: dropping(q, Fraction(1, 3), reports=False)) == 0


def test_draft_dropped_documented_numbers():
    """p = (.7, .3), q = (.5, .5), submitted only if it is token 0: (.85, .15) comes out."""
    p, q = [Fraction(7, 10), Fraction(3, 10)], [Fraction(1, 2), Fraction(1, 2)]
    drafter = lambda k: iter([(q[0], (0,), [q]), (q[1], (), [])])  # noqa: E731
    law = output_law(verify_token, lambda _: p, drafter, 1)
    assert sum(mass for tokens, mass in law.items() if tokens[0] == 0) == Fraction(85, 100)


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_law_reported_before_warping(rule):
    """Drafts drawn at temperature 1/2, the law reported at temperature 1."""

    def drafter(q):
        def warped(prefix):
            squares = [x * x for x in q(prefix)]
            return [x / sum(squares) for x in squares]

        return sampled(warped, report=q)

    assert biased(rule, drafter) == 10


@pytest.mark.parametrize("rule", [verify_token, verify_block])
def test_law_of_the_neighbouring_position(rule):
    """q rows shifted by one against the drafts."""

    def drafter(q):
        return sampled(q, report=lambda prefix: q(prefix[:-1]))

    assert biased(rule, drafter) == 10


# A single number


def test_non_strict_comparison_accepts_the_impossible():
    """u = 0 with `<=` keeps a token of probability 0; measure zero in exact arithmetic, real in fp32."""

    def non_strict(p_x, q_x, u):
        return next((i for i, (p, q, v) in enumerate(zip(p_x, q_x, u, strict=True)) if not v * q <= p), len(p_x))

    assert non_strict([0.0], [0.5], [0.0]) == 1
    assert accept_prefix([0.0], [0.5], [0.0]) == 0


def test_the_helper_agrees_with_the_real_block_rule():
    """`block_parts` is the real rule but for the break: scanning all positions gives `verify_block`."""

    def scan(p, drafts, q, u, u_tail):
        w, passes = block_parts(p, drafts, q, u)
        kept = max((i + 1 for i, ok in enumerate(passes) if ok), default=0)
        return Verdict(kept, pick(p[kept] if kept == len(drafts) else residual(p[kept], q[kept], w[kept]), u_tail))

    assert biased(scan, sampled) == 0
