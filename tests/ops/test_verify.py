"""The tensor verifier is the core's rule: equal verdicts on equal uniforms, in every corner, and its fast path is no exception."""

from __future__ import annotations

import random

import pytest
import torch

from headstart.core import rand
from headstart.core.acceptance import verify_block, verify_token
from headstart.core.params import SamplingParams
from headstart.core.types import Proposal, Sequence, Verdict
from headstart.ops.noise import race
from headstart.ops.sampling import law
from headstart.ops.verify import Fault, judge
from headstart.ops.verify import verify as verify_sequence

LAST = 1 - 2.0**-53
CORE = {"rejection": verify_token, "block": verify_block}


def verify(logits, proposal, params, rule, seed, length) -> Verdict:
    """The verifier on a sequence that has just these properties."""
    return verify_sequence(logits, proposal, Sequence(0, "r", 0, params, [0] * length, length, seed, rule))


def tensor(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def some_law(r: random.Random, size: int, zeros: float) -> list[float]:
    weights = [0.0 if r.random() < zeros else r.random() ** 3 for _ in range(size)]
    weights[r.randrange(size)] += 0.5
    total = sum(weights)
    return [w / total for w in weights]


def dyadic_law(r: random.Random, size: int) -> list[float]:
    """Multiples of 1/64: every sum and most ratios are exact, so borders can be hit exactly."""
    counts = [0] * size
    for _ in range(16):
        counts[r.randrange(size)] += 4
    return [c / 64 for c in counts]


def draft_from(r: random.Random, q: list[float]) -> int:
    return r.choices(range(len(q)), q)[0]


def compare(rule: str, p, drafts, q, u, u_tail) -> Verdict:
    got = judge(tensor(p), drafts, tensor(q).reshape(len(drafts), len(p[0])), rule, u, u_tail)
    assert got == CORE[rule](p, drafts, q, u, u_tail)
    assert 0 <= got.accepted <= len(drafts) and 0 <= got.tail < len(p[0])
    return got


@pytest.mark.parametrize("rule", CORE)
def test_judge_equals_the_core(rule):
    """Random laws with zeros, ragged k, uniforms that include both ends."""
    r = random.Random(rule)
    seen = set()
    for _ in range(1500):
        k, size = r.randrange(5), r.randrange(3, 51)
        zeros = r.choice((0.0, 0.3, 0.8))
        p = [some_law(r, size, zeros) for _ in range(k + 1)]
        q = [r.choice((p[i], some_law(r, size, zeros))) for i in range(k)]
        drafts = [draft_from(r, law) for law in q]
        u = [r.choice((0.0, r.random(), r.random() / 4, LAST)) for _ in range(k)]
        got = compare(rule, p, drafts, q, u, r.choice((0.0, r.random())))
        seen.add((k, got.accepted))
    assert seen >= {(k, a) for k in range(5) for a in range(k + 1)}


def test_judge_equals_the_core_on_the_borders():
    """Uniforms exactly on p(x)/q(x) and on the steps of the tail's law: strict there as here."""
    r = random.Random(7)
    on_border = 0
    for _ in range(1500):
        k, size = r.randrange(1, 5), r.randrange(3, 9)
        p = [dyadic_law(r, size) for _ in range(k + 1)]
        q = [dyadic_law(r, size) for _ in range(k)]
        drafts = [draft_from(r, law) for law in q]
        ratio = [p[i][x] / q[i][x] for i, x in enumerate(drafts)]
        u = [r.choice((0.0, min(ratio[i], LAST), r.randrange(64) / 64, LAST)) for i in range(k)]
        on_border += any(v * q[i][x] == p[i][x] > 0 for i, (x, v) in enumerate(zip(drafts, u, strict=True)))
        got = compare("rejection", p, drafts, q, u, r.randrange(64) / 64)
        compare("rejection", p, drafts, q, u, LAST)
        assert all(p[i][drafts[i]] > 0 for i in range(got.accepted))
    assert on_border > 100


@pytest.mark.parametrize("rule", CORE)
def test_equal_laws_accept_everything_and_never_divide_by_zero(rule):
    """p = q: no residual mass. All drafts stand; forced rejections fall back to p and never to id 0."""
    r = random.Random(3)
    for _ in range(200):
        p = [some_law(r, 12, 0.5) for _ in range(4)]
        for row in p:
            row[0] = 0.0
        p = [[x / sum(row) for x in row] for row in p]
        drafts = [draft_from(r, row) for row in p[:3]]
        got = compare(rule, p, drafts, p[:3], [r.random() for _ in range(3)], r.random())
        assert got.accepted == 3 and got.tail != 0
        drafts[1] = 0  # of probability 0 under both: a drafter's bug, and still no id 0 in the text
        got = compare(rule, p, drafts, p[:3], [0.0] * 3, r.random())
        assert got.tail != 0


@pytest.mark.parametrize("rule", CORE)
def test_a_draft_of_probability_zero_is_rejected_at_every_position(rule):
    """u = 0 exactly, at position 0, 1 and 2: the tail comes from that row and from no other."""
    for at in range(3):
        p = [[0.0] * 6 for _ in range(4)]
        for i, row in enumerate(p):
            row[i + 1] = 1.0  # row i can only emit i + 1
        q = [[0.2, 0.2, 0.2, 0.2, 0.2, 0.0]] * 3
        drafts = [1, 2, 3]
        drafts[at] = 0
        assert compare(rule, p, drafts, q, [0.0] * 3, 0.0) == (at, at + 1)


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_the_greedy_path_is_the_one_hot_law(temperature):
    """The fast path against the ordinary one on the law that greedy decoding has, for any uniforms, with ties."""
    r, params = random.Random(5), SamplingParams(temperature=temperature)
    seen = set()
    for i in range(300):
        k, size = r.randrange(5), r.randrange(2, 30)
        logits = torch.randn(k + 1, size, generator=torch.Generator().manual_seed(i)).mul(2).round()
        p = law(logits, params)
        drafts = [int(p[j].argmax()) if r.random() < 0.7 else r.randrange(size) for j in range(k)]
        got = verify(logits, Proposal(drafts), params, "rejection", i, 9)
        q = tensor([[float(v == x) for v in range(size)] for x in drafts]).reshape(k, size)
        u = [r.choice((0.0, r.random(), LAST)) for _ in range(k)]
        for rule in CORE:
            assert judge(p, drafts, q, rule, u, r.random()) == got
            for reported in (None, q):
                assert verify(logits, Proposal(drafts, reported), params, rule, i, 9) == got
        seen.add((k, got.accepted))
    assert seen >= {(4, 0), (4, 4), (0, 0)}


def random_step(seed: int, k: int, size: int = 20):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(k + 1, size, generator=generator, dtype=torch.float64) * 2
    q = torch.softmax(torch.randn(k, size, generator=generator, dtype=torch.float64), -1)
    return logits, q


def test_match_is_plain_sampling():
    """Drafts stand while they equal the target's own samples at their positions; what it drew from does not matter.

    So they do under every rule where no law is reported: a draw from p is the draft with probability p(x), else one of p without x.
    """
    params, seen = SamplingParams(temperature=0.9, top_k=6), set()
    for seed in range(200):
        logits, q = random_step(seed, 3)
        p = law(logits, params)
        own = [race(p[i], seed, 11 + i) for i in range(4)]
        for wrong in range(4):
            drafts = own[:3]
            if wrong < 3:
                drafts[wrong] = (drafts[wrong] + 1 + seed % 19) % 20
            for rule, reported in (("match", None), ("match", q), ("rejection", None), ("block", None)):
                assert verify(logits, Proposal(drafts, reported), params, rule, seed, 11) == (wrong, own[wrong])
            seen.add(wrong)
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_without_drafts_every_rule_is_plain_sampling(rule):
    params = SamplingParams(top_p=0.9)
    for seed in range(50):
        logits, _ = random_step(seed, 0)
        assert verify(logits, Proposal(), params, rule, seed, 4) == (0, race(law(logits, params)[0], seed, 4))


@pytest.mark.parametrize("rule", CORE)
def test_verify_uses_the_uniforms_of_its_own_lanes(rule):
    """ACCEPT and TAIL at the length of the text, index by draft: streams of their own, keyed by nothing else."""
    params = SamplingParams()
    for seed in range(100):
        logits, q = random_step(seed, 3)
        drafts = [int(row.argmax()) for row in q]
        u = [rand.uniform(seed, rand.ACCEPT, 17, i) for i in range(3)]
        want = judge(law(logits, params), drafts, q, rule, u, rand.uniform(seed, rand.TAIL, 17))
        assert verify(logits, Proposal(drafts, q), params, rule, seed, 17) == want
        assert verify(logits, Proposal(drafts, q), params, rule, seed, 17) == want  # and no state


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_law_raise_where_they_are_reached(bad, rule, temperature):
    """A plausible id is worse than an error, and an error that plain decoding does not have is worse than none."""
    params = SamplingParams(temperature=temperature)
    for row in range(3):
        clean, _ = random_step(row, 2, 8193)
        p = law(clean, params)
        drafts = [race(p[i], 0, 5 + i) for i in range(2)]
        proposal = Proposal(drafts, None if rule == "match" else p[:2])  # every draft stands
        assert verify(clean, proposal, params, rule, 0, 5).accepted == 2
        logits = clean.float()
        logits[row, 8192 - row] = bad
        logits[row + 1 :, 7] = bad  # what comes after the first broken row does not matter
        with pytest.raises(Fault, match="not finite") as fault:
            verify(logits, proposal, params, rule, 0, 5)
        assert fault.value.accepted == row
        with pytest.raises(Fault):
            verify(logits[row : row + 1], Proposal(), params, rule, 0, 5)
        for wrong in range(row):  # a draft that falls before the broken row: nobody gets there
            other = [*drafts]
            other[wrong] = (other[wrong] + 1) % 8193
            certain = Proposal(other, None)
            if rule == "match" or temperature == 0:
                assert verify(logits, certain, params, rule, 0, 5) == verify(clean, certain, params, rule, 0, 5)
                assert verify(logits, certain, params, rule, 0, 5).accepted == wrong
    logits[:] = bad
    with pytest.raises(Fault):
        verify(logits, Proposal([1, 2]), params, rule, 0, 5)


@pytest.mark.parametrize("size", [7, 100, 8193, 151936])
def test_ids_stay_below_the_vocabulary(size):
    for seed in range(3):
        logits, q = random_step(seed, 2, size)
        for rule in ("rejection", "block", "match"):
            for proposal in (Proposal([size - 1, 0], q), Proposal([size - 1, size - 1]), Proposal([size - 1])):
                got = verify(logits[: len(proposal.tokens) + 1], proposal, SamplingParams(), rule, seed, 3)
                assert 0 <= got.tail < size
