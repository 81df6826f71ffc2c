"""The joint law of two tokens under an adversarial draft, with the seeds and streams of the real thing.

The draft's logits are minus the target's: noise shared between drafting, judging and recovering shows there and hides in
friendlier tests. The tensor verifier runs a part of the samples, and its plain-number twin (`test_verify.py` holds the two
equal) the rest; `HEADSTART_SAMPLES` raises the number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from headstart.core import rand
from headstart.core.acceptance import pick, verify_block, verify_token
from headstart.core.params import SamplingParams
from headstart.core.types import Proposal, Sequence, Verdict
from headstart.ops.sampling import law
from headstart.ops.verify import verify

stats = pytest.importorskip("scipy.stats")

V, K, START = 16, 2, 5
PARAMS = SamplingParams()
DRAWS = {"tensor": int(os.environ.get("HEADSTART_SAMPLES", "4000")), "core": max(40_000, int(os.environ.get("HEADSTART_SAMPLES", "0")))}
CORE = {"rejection": verify_token, "block": verify_block}


class Pair:
    """A target whose law depends on the last token, and the draft that likes best what the target likes least."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.logits = torch.randn(V, V, generator=generator, dtype=torch.float64) * 0.8  # row: after that token
        self.p, self.q = law(self.logits, PARAMS), law(-self.logits, PARAMS)
        self.p_plain, self.q_plain = self.p.tolist(), self.q.tolist()

    def drafts(self, last: int, seed: int, length: int) -> list[int]:
        """K drafts from the draft's law with the DRAFT stream; every third step asks for fewer."""
        out: list[int] = []
        for i in range(K - (seed + length) % 3 % K):
            out.append(pick(self.q_plain[out[-1] if out else last], rand.uniform(seed, rand.DRAFT, length, i)))
        return out


Step = Callable[[Pair, int, list[int], str, int, int], Verdict]


def tensor_step(pair: Pair, last: int, drafts: list[int], rule: str, seed: int, length: int) -> Verdict:
    seq = Sequence(0, "r", 0, PARAMS, [0] * length, length, seed, rule)
    return verify(pair.logits[[last, *drafts]], Proposal(drafts, pair.q[[last, *drafts[:-1]]]), seq)


def core_step(pair: Pair, last: int, drafts: list[int], rule: str, seed: int, length: int) -> Verdict:
    rows = [last, *drafts]
    u = [rand.uniform(seed, rand.ACCEPT, length, i) for i in range(len(drafts))]
    q = [pair.q_plain[t] for t in rows[:-1]]
    return CORE[rule]([pair.p_plain[t] for t in rows], drafts, q, u, rand.uniform(seed, rand.TAIL, length))


STEPS: dict[str, Step] = {"tensor": tensor_step, "core": core_step}


def sample(pair: Pair, step: Step, rule: str, draws: int) -> tuple[Counter, int, int]:
    """Pairs of tokens after token 0, one seed each; and how much was drafted and kept."""
    seen: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for seed in range(draws):
        out: list[int] = []
        while len(out) < 2:
            last, length = out[-1] if out else 0, START + len(out)
            drafts = pair.drafts(last, seed, length)
            verdict = step(pair, last, drafts, rule, seed, length)
            out += [*drafts[: verdict.accepted], verdict.tail]
            drafted, accepted = drafted + len(drafts), accepted + verdict.accepted
        seen[tuple(out[:2])] += 1
    return seen, drafted, accepted


def p_value(pair: Pair, seen: Counter) -> float:
    """Chi-square of the pairs against the target; cells of small expectation merged."""
    draws, observed, expected, rest = seen.total(), [], [], [0, 0.0]
    for a in range(V):
        for b in range(V):
            mean = draws * pair.p_plain[0][a] * pair.p_plain[a][b]
            if mean >= 5:
                observed.append(seen[a, b])
                expected.append(mean)
            else:
                rest = [rest[0] + seen[a, b], rest[1] + mean]
    if rest[1] > 0:
        observed.append(rest[0])
        expected.append(rest[1])
    return stats.chisquare(observed, expected, sum_check=False).pvalue


@pytest.mark.parametrize("rule", CORE)
@pytest.mark.parametrize("kind", STEPS)
def test_joint_law_of_two_tokens(kind, rule):
    pair = Pair()
    seen, drafted, accepted = sample(pair, STEPS[kind], rule, DRAWS[kind])
    assert drafted > accepted > 0
    assert p_value(pair, seen) > 0.001


@pytest.mark.parametrize("rule", CORE)
def test_accept_noise_reused_for_the_tail_is_detected(monkeypatch, rule):
    """The uniform that rejected a draft must not draw its replacement."""
    pair = Pair()
    monkeypatch.setattr(rand, "TAIL", rand.ACCEPT)
    for kind, draws in (("tensor", 3000), ("core", 12_000)):
        assert p_value(pair, sample(pair, STEPS[kind], rule, draws)[0]) < 1e-6


@pytest.mark.parametrize("rule", CORE)
def test_draft_noise_reused_for_the_tail_is_detected(monkeypatch, rule):
    """The uniform that drew the rejected draft must not draw its replacement: the output leans to the draft."""
    pair = Pair()
    monkeypatch.setattr(rand, "TAIL", rand.DRAFT)
    assert p_value(pair, sample(pair, core_step, rule, 12_000)[0]) < 1e-6


@pytest.mark.parametrize("rule", CORE)
def test_draft_noise_reused_for_accepting_is_detected(monkeypatch, rule):
    pair = Pair()
    monkeypatch.setattr(rand, "ACCEPT", rand.DRAFT)
    assert p_value(pair, sample(pair, core_step, rule, 12_000)[0]) < 1e-6
