"""What `headstart analyse` says of a head and of a small model, against the engine that runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headstart import LLM, SamplingParams
from headstart.analysis.costs import Costs
from headstart.analysis.document import Analysis, document
from headstart.analysis.measure import measure
from headstart.analysis.score import score
from headstart.analysis.trajectory import Trajectory, generate
from headstart.analysis.unroll import unrolled
from headstart.bench.arms import Arm, make_arms
from headstart.bench.run import Plan
from headstart.bench.workload import Question
from headstart.cli.main import run
from headstart.draft.head import HeadDrafter
from headstart.ops.sampling import law
from headstart.runtime.runner import Feed

QUESTIONS = [
    Question(f"q{i}", "ab"[i % 2], (text,)) for i, text in enumerate(("the cat", "on the mat the cat", "def return", "sat on the"))
]
K = 5


def arms_of(llm: LLM, specs: list[dict[str, Any]], rule: str = "rejection") -> list[Arm]:
    return make_arms(llm, [{**s, "num_speculative_tokens": K, "verify": rule, "adaptive": False} for s in specs])[1:]


def judged(llm: LLM, arms: list[Arm], params: SamplingParams, rule: str = "rejection") -> tuple[dict[str, Any], Plan, list[Trajectory]]:
    plan = Plan(QUESTIONS, params, (1,), (params.temperature,), warmup=0)
    texts, _ = generate(llm, replace(plan, batches=(4,)), lambda n: None, lambda: False)
    truths, scores = score(llm, [a.drafter for a in arms], texts, params, K, lambda: False)
    costs = Costs({10: {m: 1.0 + 0.1 * m for m in range(1, K + 2)}}, {a.draft: (0.0, 0.05) for a in arms})
    return document(llm, Analysis(texts, truths, arms, scores, costs, params, rule, K), "test", [], False), plan, texts


def test_greedy_passes_are_foretold_exactly(llm: LLM, head: Path, small: Path) -> None:
    arms = arms_of(llm, [{"model": str(head)}, {"model": str(head), "quantization": "int8"}, {"model": str(small)}])
    found, plan, _ = judged(llm, arms, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    for k in (1, 3, K):
        done = measure(llm, [replace(a, k=k, name=f"{a.draft} {k}") for a in arms], plan, lambda n: None, lambda: False)
        for d in found["drafters"]:
            m = done[d["name"]]
            assert m["tokens_per_pass"] == pytest.approx(d["tokens_per_pass"][k - 1], rel=1e-12), (d["name"], k)
            assert m["identical"] == m["answers"] == 4 and m["drafted"] > m["accepted"] > 0
    own, _, model = found["drafters"]
    assert own["alpha"] == pytest.approx(own["agreement"]) == pytest.approx(own["alpha_by_draft"][0]) and 0.1 < own["alpha"] < 1
    assert len(own["alpha_by_draft"]) == len(model["alpha_by_draft"]) == K and own["drafts_at"] == pytest.approx(1 - 4 / 240)
    assert len(set(own["rules"].values())) == 1 and not own["temperatures"]


@pytest.mark.parametrize(("rule", "options"), [("rejection", {}), ("block", {"top_p": 0.9}), ("match", {"top_k": 20})])
def test_sampled_passes_are_foretold_as_chance_allows(llm: LLM, head: Path, rule: str, options: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=180, ignore_eos=True, **options)
    arms = arms_of(llm, [{"model": str(head)}, {"model": str(head), "draft_temperature": 0.5, "quantization": "int8"}], rule)
    found, plan, _ = judged(llm, arms, params, rule)
    done = measure(llm, [replace(a, k=3, name=f"{a.draft} 3") for a in arms], plan, lambda n: None, lambda: False)
    for d in found["drafters"]:
        m = done[d["name"]]
        assert m["tokens_per_pass"] == pytest.approx(d["tokens_per_pass"][2], rel=0.12) and m["drafted"] > m["accepted"] > 50
    own = found["drafters"][0]
    assert own["rules"]["block"] >= own["rules"]["rejection"] > own["rules"]["match"] > 1 and len(own["temperatures"]) == 9
    assert own["temperatures"]["0.85"] == pytest.approx(own["alpha"], rel=0.1) and own["alpha_by_draft"][0] == pytest.approx(own["alpha"])


def test_its_laws_are_those_that_the_engine_drafted_from(llm: LLM, head: Path) -> None:
    """Every law of a sampling run, of each draft before which all stood, from whichever root."""
    (arm,) = arms_of(llm, [{"model": str(head)}])
    drafter = arm.drafter
    assert isinstance(drafter, HeadDrafter)
    seen: list[tuple[int, list[int], torch.Tensor]] = []
    inner, engine = drafter.propose, llm.engine

    def propose(chunks):
        made = inner(chunks)
        seen.extend((len(c.seq.tokens), p.tokens, p.probs) for c, p in zip(chunks, made, strict=True) if p.tokens)
        return made

    drafter.propose = propose  # type: ignore[method-assign]
    params = SamplingParams(temperature=1.0, max_tokens=100, seed=3, ignore_eos=True, verify="rejection")
    engine.use(drafter, K, "rejection", None)
    engine.pool.forget()
    prompt = llm.get_tokenizer()("the cat sat on the mat").input_ids
    request = engine.add("x", None, list(prompt), params)
    while not request.finished:
        engine.step()
    tokens = request.completions[0].seq.tokens
    first = len(prompt) + 1
    feed = Feed(tokens, 0, list(range(-(-len(tokens) // engine.target.block_size))))
    states = engine.target.forward_with_states([feed], drafter.hidden_layers)[1][0]
    laws = [law(logits, params) for logits in unrolled(drafter.model, tokens, states, first, K)]
    compared = [0] * K
    for root, drafts, probs in seen:
        for j in range(len(drafts)):
            if root + j >= len(tokens) or drafts[:j] != tokens[root : root + j]:
                break
            assert torch.allclose(probs[j, drafter.model.ids], laws[j][root - first], atol=1e-6), (root, j)
            compared[j] += 1
    assert compared[0] > 40 and all(compared[:3]), compared


def test_short_texts_and_short_contexts(llm: LLM, head: Path) -> None:
    (arm,) = arms_of(llm, [{"model": str(head), "max_model_len": 12}])
    texts = [Trajectory(str(n), "all", list(range(3, 3 + p)), [5] * n, n) for p, n in ((1, 1), (1, 2), (6, 20), (40, 3))]
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)):
        _, (scores,) = score(llm, [arm.drafter], texts, params, 2, lambda: False)
        assert [s.lengths.tolist() for s in scores] == [[0], [0, 2], [0, *[2] * 6, 1, *[0] * 12], [0, 0, 0]]
        assert [np.isnan(s.alpha).sum() for s in scores[:3]] == [1, 1, 1] and all(
            s.stands["rejection"].shape == (len(s.alpha), 3) for s in scores
        )


def test_the_command_sets_them_side_by_side(
    target: Path, head: Path, small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drafts = (
        "--draft",
        str(head),
        "--draft",
        str(small),
        "--draft",
        "suffix",
        "--draft",
        json.dumps({"model": str(head), "quantization": "int8"}),
    )
    little = ("--limit", "2", "--max-tokens", "16", "--dtype", "float32", "-k", "3", "--kv-cache-memory", "8MiB")
    assert run(["analyse", str(target), *drafts, *little, "-t", "1", "--out", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert "Alpha by draft" in out and "a head on the target's hidden states, 200 of the target's ids" in err
    found = {d["name"]: d for d in json.loads((tmp_path / "analysis.json").read_text())["drafters"]}
    assert set(found) == {"head", "head int8", "small", "suffix"} and not found["suffix"]["alpha_by_draft"]
    assert all(0 < a < 1 for name in ("head", "head int8", "small") for a in found[name]["alpha_by_draft"])
