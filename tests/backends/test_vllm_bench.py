"""`headstart generate` and `bench` with --backend vllm, on a stand-in for vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headstart.cli.main import run

Fake = Callable[..., None]


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.jsonl"
    rows = [{"id": str(i), "category": "ab"[i % 2], "turns": ["hi"] * (1 + i % 2)} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def call(capfd: Any, *argv: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(list(argv))
    return code, *capfd.readouterr()


def test_bench_compares_engines_one_after_the_other(folders: dict[str, str], fake: Fake, questions: str, capfd: Any) -> None:
    """Answers, speed, drafts and verdict of the same questions; what vLLM does not tell is not there."""
    base = ("bench", "--backend", "vllm", "--model", folders["target"], "--data", questions, "--max-tokens", "6", "--max-model-len", "200")
    code, out, _ = call(capfd, *base, "--draft", "ngram", "--draft", folders["draft"], "-k", "3", "--batch", "2", "--json")
    found = json.loads(out)
    assert code == 0 and found["passed"] and [a["name"] for a in found["arms"]] == ["plain", "ngram k=3", "draft k=3"]
    assert [v["words"] for v in found["verdicts"]] == ["identical: 5 answers, 30 tokens"] * 2
    plain, drafting = found["results"][:2]
    assert plain["overall"]["tokens_per_pass"] == 1 and drafting["overall"]["tokens_per_pass"] == 1.5
    assert (drafting["overall"]["drafted"], drafting["overall"]["accepted"]) == (30, 15) and found["width"] == {}
    assert found["model"]["device"].startswith("vLLM") and any("one after the other" in note for note in found["notes"])
    code, out, _ = call(capfd, *base, "--draft", "ngram", "-k", "3", "--limit", "1")
    assert code == 0 and "ngram k=3" in out and "PASS" in out


def test_sampled_answers_are_judged_by_their_law(folders: dict[str, str], fake: Fake, questions: str, capfd: Any) -> None:
    base = ("bench", "--backend", "vllm", "--model", folders["target"], "--data", questions, "--max-tokens", "4", "--max-model-len", "200")
    code, out, _ = call(capfd, *base, "--draft", "ngram", "-t", "1", "--samples", "20", "--limit", "1", "--json")
    assert code == 0 and "joint law of 3 tokens, 20 samples each" in json.loads(out)["verdicts"][0]["words"]


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("bench", ("--draft", "ngram", "--adaptive"), "--adaptive"),
        ("bench", ("--synthetic-acceptance", "0.5"), "--synthetic-acceptance"),
        ("generate", ("--draft", "ngram", "--compare", "hi"), "headstart bench"),
        ("generate", ("--draft", "ngram", "--min-p", "0.5", "hi"), "min_p"),
        ("generate", ("--draft", "ngram", "--prediction", sys.executable + "-none", "hi"), "cannot be read"),
        ("generate", ("--backend-option", "no_such=1", "hi"), "no_such"),
    ],
)
def test_what_vllm_cannot_do(folders: dict[str, str], fake: Fake, command: str, options: tuple[str, ...], words: str, capfd: Any) -> None:
    code, _, err = call(capfd, command, "--backend", "vllm", "--model", folders["target"], "--max-model-len", "64", *options)
    assert code == 2 and words in err.splitlines()[-1]


def test_generate_prints_the_text_and_the_counts(folders: dict[str, str], fake: Fake, capfd: Any) -> None:
    base = ("generate", "--backend", "vllm", "--model", folders["target"], "--draft", "ngram", "-k", "3", "--raw", "--max-tokens", "4")
    code, out, err = call(capfd, *base, "the cat")
    assert (code, len(out.split())) == (0, 4) and "2/4 (50 %) accepted" in err.replace("1/2", "2/4") and "vLLM 0.32.0" in err
    code, out, _ = call(capfd, *base, "--json", "the cat")
    made = json.loads(out)["outputs"][0]
    assert made["completions"][0]["origins"] == [] and made["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
