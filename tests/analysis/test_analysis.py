"""The analysis against the engine: at temperature 0 every pass is foretold, at others as many as chance allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headstart import LLM, SamplingParams
from headstart.analysis.costs import Costs, measure_draft, measure_steps
from headstart.analysis.document import Analysis, compare, document
from headstart.analysis.measure import measure
from headstart.analysis.pool import pooled
from headstart.analysis.score import score
from headstart.analysis.trajectory import generate, load
from headstart.bench.arms import make_arms
from headstart.bench.run import Plan
from headstart.bench.workload import Question
from headstart.core.errors import ConfigError
from tests import tiny

QUESTIONS = [
    Question(f"q{i}", "ab"[i % 2], (text,)) for i, text in enumerate(("the cat", "on the mat the cat", "def return", "sat on the"))
]
NEVER: Callable[[], bool] = lambda: False  # noqa: E731


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and beside it a draft near to it."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("target", "near"):
        (folder / name).mkdir()
        vocab = len(tiny.write_tokenizer(folder / name))
    model = tiny.llama_model(vocab=vocab, max_len=512, eos=2)
    tiny.save(folder / "target", model)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.03 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype)
    tiny.save(folder / "near", model)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder / "target"), dtype="float64", device="cpu", kv_cache_memory="8MiB", max_num_seqs=4, seed=0)


def analysed(llm: LLM, specs: list[dict[str, Any]], params: SamplingParams, rule: str = "rejection", k: int = 6) -> tuple[dict, list, Plan]:
    plan = Plan(QUESTIONS, params, (1,), (params.temperature,), warmup=0)
    arms = make_arms(llm, [{**s, "num_speculative_tokens": k, "verify": rule, "adaptive": False} for s in specs])[1:]
    texts, _ = generate(llm, replace(plan, batches=(4,)), lambda n: None, NEVER)
    truths, scores = score(llm, [a.drafter for a in arms], texts, params, k, NEVER)
    costs = Costs({10: {m: 1.0 + 0.1 * m for m in range(1, k + 2)}}, {a.draft: (0.0, 0.05) for a in arms})
    return document(llm, Analysis(texts, truths, arms, scores, costs, params, rule, k), "test", [], False), arms, plan


def test_greedy_passes_are_foretold_exactly(llm: LLM, folder: Path) -> None:
    specs = [{"method": "ngram", "prompt_lookup_min": 1}, {"method": "suffix"}, {"model": str(folder / "near")}]
    found, arms, plan = analysed(llm, specs, SamplingParams(temperature=0, max_tokens=60))
    for k in (1, 3, 6):
        done = measure(llm, [replace(a, k=k, name=f"{a.draft} {k}") for a in arms], plan, lambda n: None, NEVER)
        for d in found["drafters"]:
            m = done[d["name"]]
            assert m["tokens_per_pass"] == pytest.approx(d["tokens_per_pass"][k - 1], rel=1e-12), (d["name"], k)
            assert m["identical"] == m["answers"] == 4 and m["drafted"] > m["accepted"] > 0
    near = found["drafters"][2]
    assert near["alpha"] == pytest.approx(near["agreement"]) and 0.1 < near["alpha"] < 1 and near["forward_kl"] > 0
    assert len(set(near["rules"].values())) == 1 and not near["temperatures"]  # at temperature 0 the rules are one
    assert found["drafters"][0]["drafts_at"] < 1 and found["drafters"][0]["forward_kl"] is None


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_sampled_passes_are_foretold_as_chance_allows(llm: LLM, folder: Path, rule: str) -> None:
    params = SamplingParams(temperature=1, max_tokens=150, ignore_eos=True, top_p=0.95)
    found, arms, plan = analysed(llm, [{"model": str(folder / "near")}, {"method": "ngram"}], params, rule)
    done = measure(llm, [replace(a, k=4, name=f"{a.draft} 4") for a in arms], plan, lambda n: None, NEVER)
    near = found["drafters"][0]
    assert done["near"]["tokens_per_pass"] == pytest.approx(near["tokens_per_pass"][3], rel=0.12) and done["near"]["drafted"] > 300
    if rule == "match":
        ngram = found["drafters"][1]
        assert done["ngram"]["identical"] == 4 and done["ngram"]["tokens_per_pass"] == pytest.approx(ngram["tokens_per_pass"][3], rel=1e-12)
    assert near["rules"]["block"] >= near["rules"]["rejection"] > near["rules"]["match"] > 1
    assert near["forward_kl_infinite"] > 0 and near["forward_kl"] is None and near["reverse_kl"] is None


def test_a_draft_that_is_the_target(llm: LLM, folder: Path) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=40, ignore_eos=True)
    (d,) = analysed(llm, [{"model": str(folder / "target")}], params)[0]["drafters"]
    assert d["alpha"] == pytest.approx(1) and d["agreement"] == 1 and d["forward_kl"] == pytest.approx(0, abs=1e-9)
    assert d["alpha_at_least"] == pytest.approx(1, abs=1e-4) and max(d["temperatures"], key=d["temperatures"].get) in ("0.7", "0.85")
    assert d["tokens_per_pass"][5] == 40 / 6 and d["best_k"] == 6  # 7 + 7 + 7 + 7 + 7 + 5
    assert d["stands_when_drafted"] == pytest.approx([1] * 6) and d["acceptance_per_position"][0] == pytest.approx(1)


def test_bounds_entropy_and_ranking(llm: LLM, folder: Path) -> None:
    params = SamplingParams(temperature=1, max_tokens=80, ignore_eos=True)
    found, _, _ = analysed(llm, [{"method": "ngram"}, {"model": str(folder / "near")}], params)
    near = found["drafters"][1]
    assert 0 < near["alpha_at_least"] < near["alpha"] < 1 and near["tv"] == pytest.approx(1 - near["alpha"])
    assert sum(b["positions"] for b in near["entropy"]) == found["workload"]["tokens"] == 320
    assert sum(c["positions"] for c in near["categories"].values()) == 320 and set(near["categories"]) == {"a", "b"}
    speeds = {d["name"]: d["best_speedup"]["median"] for d in found["drafters"]}
    assert found["ranking"] == sorted(speeds, key=lambda n: -speeds[n]) and found["winner"] == "near"
    k = near["best_k"]
    # Linear costs by hand: tokens over (step of k + 1 rows + k drafts), relative to a step of one row; the end of a text counts apart.
    assert near["speedup"][k - 1]["median"] == pytest.approx(near["tokens_per_pass"][k - 1] * 1.1 / (1.1 + 0.15 * k), rel=0.03)
    assert near["speedup"][k - 1]["low"] < near["speedup"][k - 1]["median"] < near["speedup"][k - 1]["high"]
    compare(found, {n: {"k": 1, "speedup": {"median": 2.0 - i}, "tokens_per_pass": 1.5} for i, n in enumerate(found["ranking"])})
    assert found["same_order"] and found["measured"]["near"]["error"] == pytest.approx(near["speedup"][0]["median"] / 2 - 1)
    assert len(found["samples"][0]["tokens"]) == len(found["samples"][0]["alpha"]["near"]) == 80


def test_a_bad_draft_is_not_recommended(llm: LLM) -> None:
    found, _, _ = analysed(
        llm, [{"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 4}], SamplingParams(temperature=1.5, max_tokens=20)
    )
    assert found["winner"] is None or found["drafters"][0]["best_speedup"]["median"] > 1


def test_costs_are_of_real_steps(llm: LLM, folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=20)
    plan = Plan(QUESTIONS, params, (2,), (0.0,), warmup=0)
    texts, _ = generate(llm, plan, lambda n: None, NEVER)
    steps = measure_steps(llm, texts, params, "rejection", 6, NEVER)
    assert len(steps) == 2 and all(sorted(each) == [1, 2, 3, 4, 5, 6, 7] and min(each.values()) > 0 for each in steps.values())
    (arm,) = make_arms(llm, [{"model": str(folder / "near"), "num_speculative_tokens": 6, "adaptive": False}])[1:]
    a, b = measure_draft(llm, arm, texts[0], params, 6, Costs(steps), NEVER)
    assert a >= 0 and b > 0 and not llm.engine.has_work
    costs = Costs({10: {1: 1.0, 3: 3.0}, 20: {1: 2.0, 3: 6.0}}, {"x": (0.5, 0.25)})
    assert costs.step(np.array([1, 2]), np.array([15, 99])).tolist() == [1.5, 4.0] and costs.draft("x", 2) == 1.0
    assert costs.middle == 15 and costs.relative("x") == pytest.approx(0.25 / 1.5)
    llm.engine.pool.check()


def test_answers_of_others(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "the cat", "answer": "sat on the mat", "category": "x"}\n\n{"prompt": "def", "answer": " return"}\n')
    texts = load(llm, str(file), None, 3)
    assert [t.category for t in texts] == ["x", "all"] and all(1 <= len(t.answer) <= 3 for t in texts)
    assert llm.get_tokenizer().decode(load(llm, str(file), 1, 99)[0].answer) == "sat on the mat"
    for text, words in (("x", "line 1"), ('{"prompt": "a"}', "line 1"), ("", "no answer"), ('{"prompt": "a", "answer": ""}', "no answer")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load(llm, str(file), None, 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(llm, str(tmp_path / "none"), None, 3)


def test_pooled_ratios() -> None:
    got = pooled([(2.0, 1.0), (4.0, 4.0)])
    assert got is not None and got.median == 1.2 and got.low == 1.0 and got.high == 2.0 and got.questions == 2
    assert pooled([]) is None and pooled([(3.0, 2.0)]).low is None  # type: ignore[union-attr]
