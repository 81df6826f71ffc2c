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
import torch

from headstart.core.params import SamplingParams
from headstart.ops.sampling import law
from tests.doubles import EchoModel, make_drafter, make_engine, totals
from tests.reference import letters_tokenizer, matches, shaped

stats = pytest.importorskip("scipy.stats")

SAMPLES = int(os.environ.get("HEADSTART_SAMPLES", "3000"))
PROMPT = [2, 5, 2, 5, 1, 2]


def shy(tokens, row):
    """A logits processor: less of what came two tokens ago."""
    row = row.clone()
    row[tokens[-2]] -= 1.5
    return row


CASES = [
    ("none", "rejection", {}),
    ("ngram", "rejection", {}),
    ("ngram", "match", {}),
    ("corpus", "block", {}),
    ("hybrid", "rejection", {}),
    ("quantised", "rejection", {}),
    ("quantised", "block", {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5}),
    ("asking", "rejection", {}),
    ("tokens", "rejection", {}),
    ("tokens", "block", {"temperature": 0.7, "top_k": 5, "presence_penalty": 0.5}),
    ("tokens", "rejection", {"allowed_token_ids": [0, 2, 3, 5]}),
    ("text", "rejection", {}),
    ("asking", "block", {"temperature": 1.3}),
    ("hybrid", "block", {"temperature": 0.8, "frequency_penalty": 0.5, "prediction": [3, 1, 4, 1, 5]}),
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
    ("model", "rejection", {"presence_penalty": 0.6, "frequency_penalty": 0.8, "repetition_penalty": 1.5}),
    ("adversary", "block", {"presence_penalty": -0.6, "frequency_penalty": 0.8, "repetition_penalty": 0.7, "temperature": 0.8}),
    ("ngram", "rejection", {"logit_bias": {1: 1.5, 4: -1.0}, "min_tokens": 2, "stop_token_ids": [1]}),
    ("adversary", "rejection", {"min_tokens": 1, "stop_token_ids": [3, 5], "allowed_token_ids": [0, 2, 3, 5]}),
    ("model", "block", {"logits_processors": [shy], "top_k": 4, "logprobs": 1}),
    ("model", "match", {"presence_penalty": 0.6, "logits_processors": [shy], "logit_bias": {0: 1.0}}),
]


def exact_law(target: EchoModel, params: SamplingParams, prompt: list[int] = PROMPT) -> dict[tuple[int, ...], float]:
    """Probability of every output of at most three tokens after the prompt, by enumeration."""
    open_, done = {(): 1.0}, {}
    for _ in range(3):
        longer = {}
        for seen, mass in open_.items():
            row = target.logits((*prompt, *seen))[: target.vocab].tolist()
            p = law(torch.tensor(shaped(row, prompt, list(seen), params), dtype=torch.float64)[None], params)[0]
            for t, probability in enumerate(p.tolist()):
                if probability > 0:
                    (done if t in params.stop_token_ids else longer)[(*seen, t)] = mass * probability
        open_ = longer
    return {**open_, **done}


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

    monkeypatch.setattr(verify, "_excess", lambda p, q, weight: p)
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
        assert p_value(seen[j], exact_law(target, SamplingParams(max_tokens=3, **o), PROMPT[: 3 + j])) > 0.001


@pytest.mark.parametrize(("kind", "rule"), [("model", "rejection"), ("adversary", "block"), ("ngram", "rejection")])
def test_structured_output_follows_the_constrained_law(kind, rule):
    """The grammar's mask at every row: short outputs of a small language, against exact enumeration."""
    tokenizer = letters_tokenizer()
    target = EchoModel(vocab=len(tokenizer), local=2.0, whole=1.5)
    made = make_engine(
        target,
        make_drafter(kind, target, max_rows=4096),
        rule=rule,
        k=3,
        max_seqs=256,
        max_rows=4096,
        blocks=4096,
        tokenizer=tokenizer,
        eos=(0,),
    )
    made.draft_length = lambda seq: (seq.id * 7 + len(seq.tokens)) % 4
    seen: Counter[tuple[int, ...]] = Counter()
    count = SAMPLES // 3
    wanted = {"regex": "[abc]{1,3}d?"}
    requests = [made.add(str(i), None, PROMPT, SamplingParams(max_tokens=6, seed=i, structured_outputs=wanted)) for i in range(count)]
    while made.has_work:
        made.step()
    outputs = [r.output() for r in requests]
    seen.update(tuple(o.outputs[0].token_ids) for o in outputs)
    exact: dict[tuple[int, ...], float] = {}
    allowed, open_ = matches(wanted["regex"], tokenizer, (0,)), {(): 1.0}
    while open_:
        (ids, mass), *rest = open_.items()
        open_ = dict(rest)
        row = target.logits((*PROMPT, *ids)).tolist()
        p = law(
            torch.tensor(shaped(row, PROMPT, list(ids), SamplingParams(), allowed=allowed), dtype=torch.float64)[None], SamplingParams()
        )[0]
        for t, probability in enumerate(p.tolist()):
            if probability > 0:
                (exact if t == 0 else open_)[(*ids, t)] = mass * probability
    assert p_value(seen, exact) > 0.001
    drafted, accepted = totals(outputs)
    assert drafted > accepted > 0
