"""At a temperature the engine's output follows the target's law: joint law of three tokens against exact enumeration.

Chi-square for each drafter and rule, cells of small expectation merged; `make proof` runs it with 50,000 samples each.
The adversary drafts from minus the target's logits: noise shared between drafting and recovering, invisible elsewhere,
shows there.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import pytest

from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, make_drafter, make_engine, totals

stats = pytest.importorskip("scipy.stats")

SAMPLES = int(os.environ.get("HEADSTART_SAMPLES", "6000"))
PROMPT = [2, 5, 2, 5, 1, 2]
CASES = [
    ("none", "rejection", {}),
    ("ngram", "rejection", {}),
    ("ngram", "match", {}),
    ("corpus", "block", {}),
    ("prediction", "rejection", {"prediction": [3, 1, 4, 1, 5]}),
    ("model", "rejection", {}),
    ("model", "block", {}),
    ("model", "match", {}),
    ("greedy-model", "rejection", {}),
    ("adversary", "rejection", {}),
    ("adversary", "block", {}),
    ("adversary", "match", {}),
    ("model", "rejection", {"temperature": 0.6, "top_k": 5, "top_p": 0.9, "min_p": 0.05}),
    ("adversary", "block", {"temperature": 1.4, "top_p": 0.8}),
    ("ngram", "rejection", {"temperature": 0.8, "top_k": 4}),
]


def exact_law(target: EchoModel, params: SamplingParams, prompt: list[int] = PROMPT) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of three tokens after the prompt, by enumeration."""
    out: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        out = {
            (*seen, t): mass * p for seen, mass in out.items() for t, p in enumerate(target.law([*prompt, *seen], params).tolist()) if p > 0
        }
    return out


def samples(kind: str, rule: str, options: dict, count: int):
    """Three-token samples through the real engine, a fresh seed each, random k per step."""
    target = EchoModel(vocab=6, local=2.0, whole=1.5)
    engine = make_engine(target, make_drafter(kind, target, max_rows=4096), rule=rule, k=3, max_seqs=256, max_rows=4096, blocks=4096)
    engine.draft_length = lambda seq: 0 if kind == "none" else (seq.id * 7 + len(seq.tokens)) % 4
    seen: Counter[tuple[int, ...]] = Counter()
    outputs = []
    for start in range(0, count, 2000):
        seeds = range(start, min(start + 2000, count))
        requests = [engine.add(str(i), None, PROMPT, SamplingParams(max_tokens=3, seed=i, **options)) for i in seeds]
        while engine.has_work:
            engine.step()
        outputs = [r.output() for r in requests]
        seen.update(tuple(o.outputs[0].token_ids) for o in outputs)
    return target, seen, outputs


def p_value(seen: Counter, law: dict[tuple[int, ...], float]) -> float:
    """Chi-square p-value; cells with an expectation below 5 merged. A sample of probability zero gives 0."""
    if any(s not in law for s in seen):
        return 0.0
    n = sum(seen.values())
    observed, expected, rest = [], [], [0, 0.0]
    for cell, p in law.items():
        if n * p >= 5:
            observed.append(seen[cell])
            expected.append(n * p)
        else:
            rest[0] += seen[cell]
            rest[1] += n * p
    if rest[1] > 0:
        observed.append(rest[0])
        expected.append(rest[1])
    return stats.chisquare(observed, expected, sum_check=False).pvalue


@pytest.mark.parametrize(("kind", "rule", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x) or "T1")
def test_joint_law_of_three_tokens(kind, rule, options):
    target, seen, outputs = samples(kind, rule, options, SAMPLES)
    assert p_value(seen, exact_law(target, SamplingParams(max_tokens=3, **options))) > 0.001
    drafted, accepted = totals(outputs)
    assert (drafted > accepted > 0) if kind != "none" else drafted == 0


def test_the_test_can_fail():
    """A law at a slightly other temperature is told apart."""
    target, seen, _ = samples("model", "rejection", {}, 10_000)
    assert p_value(seen, exact_law(target, SamplingParams(max_tokens=3, temperature=1.2))) < 1e-6


def test_tail_from_p_is_detected(monkeypatch):
    from headstart.ops import verify

    monkeypatch.setattr(verify, "_residual", lambda p, draft, q, weight: p)
    target, seen, _ = samples("adversary", "rejection", {}, 10_000)
    assert p_value(seen, exact_law(target, SamplingParams(max_tokens=3))) < 1e-6


def test_accept_noise_reused_for_the_tail_is_detected(monkeypatch):
    """The uniform that rejected a draft must not draw its replacement."""
    from headstart.core import rand

    monkeypatch.setattr(rand, "TAIL", rand.ACCEPT)
    target, seen, _ = samples("adversary", "rejection", {}, 20_000)
    assert p_value(seen, exact_law(target, SamplingParams(max_tokens=3))) < 1e-6


def test_laws_of_a_batch_do_not_mix():
    """Four different requests together: each follows its own law (rows swapping laws keep every counter normal)."""
    target = EchoModel(vocab=6, local=2.0, whole=1.5)
    engine = make_engine(target, make_drafter("model", target, max_rows=4096), k=3, max_seqs=64, max_rows=4096, blocks=4096, random_k=5)
    options = [{"temperature": 0.5}, {"temperature": 1.5}, {"top_k": 2}, {"min_p": 0.3}]
    seen = [Counter() for _ in options]
    for i in range(3000):
        for j, o in enumerate(options):
            engine.add(f"{i}-{j}", None, PROMPT[: 3 + j], SamplingParams(max_tokens=3, seed=i * 4 + j, **o))
    requests = list(engine.requests.values())
    while engine.has_work:
        engine.step()
    for r, j in zip(requests, itertools.cycle(range(4)), strict=False):
        seen[j].update([tuple(r.output().outputs[0].token_ids)])
    for j, o in enumerate(options):
        law = exact_law(target, SamplingParams(max_tokens=3, **o), PROMPT[: 3 + j])
        assert p_value(seen[j], law) > 0.001
