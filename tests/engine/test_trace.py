"""What a request is told about the judging of its tokens: p and q are those of independent laws, and asking changes nothing."""

from __future__ import annotations

import pytest
import torch

from headstart.core.params import SamplingParams
from headstart.engine import step
from headstart.ops.sampling import law
from tests.doubles import EchoModel, make_drafter, make_engine, run
from tests.reference import shaped

PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8, 1]]
OPTIONS = [
    {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.3},
    {"temperature": 1.0, "verify": "block", "seed": 4},
    {"temperature": 1.0, "verify": "match", "min_p": 0.02, "seed": 5},
    {"temperature": 0.0, "repetition_penalty": 1.2},
]


def expected(target: EchoModel, prompt, output, token: int, params: SamplingParams) -> float:
    logits = torch.tensor([shaped(target.logits((*prompt, *output))[: target.vocab].tolist(), prompt, output, params)], dtype=torch.float64)
    return float(torch.softmax(logits, -1)[0, token] if params.greedy else law(logits, params)[0, token])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["model", "greedy-model", "suffix"])
def test_p_and_q_are_those_of_the_laws(kind, options):
    target = EchoModel(vocab=12, seed=2)
    drafter = make_drafter(kind, target)
    plain_params, params = (SamplingParams(max_tokens=60, trace_drafts=t, **{"seed": 1, **options}) for t in (False, True))
    made = run(make_engine(target, drafter, random_k=3), PROMPTS, params)
    without = run(make_engine(target, make_drafter(kind, target), random_k=3), PROMPTS, plain_params)
    seen = {"accepted": 0, "rejected": 0, "law": 0}
    for prompt, output, other in zip(PROMPTS, made, without, strict=True):
        out = output.outputs[0]
        assert other.outputs[0].traces is None and other.outputs[0].token_ids == out.token_ids
        assert len(out.traces) == len(out.token_ids) == 60
        for i, (token, origin, trace) in enumerate(zip(out.token_ids, out.origins, out.traces, strict=True)):
            before = out.token_ids[:i]
            assert trace.p == pytest.approx(expected(target, prompt, before, token, params), abs=1e-12)
            assert bool(trace.rejected) == (origin == "recovered")
            if origin == "draft":
                seen["accepted"] += 1
            else:
                assert trace.q is None
            if trace.rejected:
                first, *behind = trace.rejected
                assert first.p == pytest.approx(expected(target, prompt, before, first.token_id, params), abs=1e-12)
                assert first.token_id != token or options.get("verify") == "block"
                assert all(d.p is None for d in behind)
                seen["rejected"] += len(trace.rejected)
            # The draft model sees one prefix of its own, so its law at the first rejected draft is that of this place.
            drafted = trace.rejected[0] if trace.rejected else trace
            if drafted.q is not None:
                model = drafter.runner.model
                token = drafted.token_id if trace.rejected else token
                assert drafted.q == pytest.approx(expected(model, prompt, before, token, params), abs=1e-12)
                seen["law"] += 1
        stats = output.metrics.speculative_decoding
        assert stats.num_accepted_draft_tokens == out.origins.count("draft")
        assert stats.num_draft_tokens == out.origins.count("draft") + sum(len(t.rejected) for t in out.traces)
    assert seen["accepted"] and seen["rejected"]
    # A greedy draft, and under `match` any, is a point mass.
    assert (seen["law"] > 0) == (kind == "model" and options["temperature"] > 0 and options.get("verify") != "match")


def test_who_does_not_ask_pays_nothing(monkeypatch):
    monkeypatch.setattr(step, "trace", lambda *_: pytest.fail("it was computed"))
    target = EchoModel(vocab=12, seed=2)
    run(make_engine(target, make_drafter("suffix", target)), PROMPTS, SamplingParams(max_tokens=20, seed=1))


def test_an_end_inside_a_run_cuts_the_traces_too():
    target = EchoModel(vocab=12, seed=2)
    whole = run(make_engine(target, make_drafter("self", target)), PROMPTS[:1], SamplingParams(max_tokens=30, temperature=0))[0].outputs[0]
    params = SamplingParams(max_tokens=30, temperature=0, stop_token_ids=[whole.token_ids[8]], trace_drafts=True)
    out = run(make_engine(target, make_drafter("self", target)), PROMPTS[:1], params)[0].outputs[0]
    assert out.finish_reason == "stop" and len(out.traces) == len(out.token_ids) == len(out.origins) <= 9
