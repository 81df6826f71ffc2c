"""`headstart bench` as a user runs it: three forms of one report, and an exit code that fails when the output is another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headstart.core.types import Verdict
from headstart.ops.verify import verify_batch
from tests.cli.interrupts import SoonAsked

Call = Callable[..., tuple[int, str, str]]
TEXT = "the harbour master keeps a list of every ship the harbour master keeps a list"
SMALL = ("--dtype", "float32", "--device", "cpu", "--kv-cache-memory", "8MiB", "--max-tokens", "16", "--ignore-eos")
NGRAM = ("--draft", "ngram", "--prompt-lookup-min", "1", "--prompt-lookup-max", "3")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three questions of two categories, one of them in two turns."""
    file = tmp_path_factory.mktemp("data") / "q.jsonl"
    lines = [{"id": "a", "category": "ships", "turns": [TEXT, "each morning"]}, {"id": "b", "category": "ships", "turns": ["ships " * 5]}]
    file.write_text("".join(json.dumps(o) + "\n" for o in [*lines, {"id": "c", "category": "names", "turns": ["names of new ships"]}]))
    return file


def rows(found: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    return [r["overall"] for r in found["results"] if r["arm"] == arm]


def test_three_forms_of_one_report(headstart: Call, tiny: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    forms = ("--out", tmp_path / "out", "--plot", tmp_path / "out.png")
    arms = (*NGRAM, "--draft", tiny, "--synthetic-acceptance", 0.7, "-k", 3)
    code, out, err = headstart("bench", "-m", tiny, *arms, "--data", data, "--batch", "1,2", *SMALL, *forms)
    assert code == 0, err
    found = json.loads((tmp_path / "out/bench.json").read_text())
    assert found["version"] == 1 and found["passed"] and not found["interrupted"] and found["machine"]["torch"]
    names = ["plain", "ngram k=3", f"{tiny.name} k=3", "synthetic 0.7 k=3"]
    assert [a["name"] for a in found["arms"]] == names and len(found["results"]) == 8 and len(found["verdicts"]) == 6
    for name in names[1:]:
        for o in rows(found, name):
            assert o["drafted"] > 0 and o["accepted"] > 0 and o["speedup"]["questions"] == 3 and o["predicted_speedup"] > 0
            assert o["tokens"] == rows(found, "plain")[0]["tokens"] * o["answers"] / 4 and set(o["split"]) >= {"draft", "target", "verify"}
            assert o["wasted_rows"] >= o["drafted"] - o["accepted"]
    assert all(o["accepted"] < o["drafted"] for n in ("ngram k=3", "synthetic 0.7 k=3") for o in rows(found, n))
    assert rows(found, f"{tiny.name} k=3")[0]["tokens_per_pass"] == 4.0  # the target drafts for itself
    assert rows(found, "plain")[0]["tokens_per_pass"] == 1.0 and "1" in found["width"]["1"] and "32" in found["width"]["1"]
    assert len([a for a in found["answers"] if a["question"] == "a" and a["turn"] == 1]) == 12  # 4 arms; batch 2 fills up with a again

    for words in (*names, "PASS", "ships", "By category", "Where the time went", "each token spoilt"):
        assert words in out
    page = (tmp_path / "out/bench.html").read_text()
    assert all(name in page for name in names) and page.count("<svg") == 6
    for outside in ("http:", "https:", "<script", "@import", "url(", "src="):
        assert outside not in page
    for drawing in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + drawing.partition("</svg>")[0] + "</svg>")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_json_on_stdout_is_the_file(headstart: Call, tiny: Path, data: Path, tmp_path: Path) -> None:
    code, out, err = headstart("bench", "-m", tiny, *NGRAM, "--data", data, "--limit", 1, *SMALL, "--json", "--out", tmp_path)
    assert code == 0 and json.loads(out) == json.loads((tmp_path / "bench.json").read_text()) and not err


def _credulous(steps: Any) -> list[Any]:
    """A verification that lets every first draft stand: fast, and wrong."""
    found = zip(verify_batch(steps), steps, strict=True)
    return [Verdict(max(v.accepted, 1), v.tail) if isinstance(v, Verdict) and proposal.tokens else v for v, (_, proposal, _) in found]


@pytest.mark.parametrize(("temperature", "words"), [("0", "DIFFERENT"), ("1", "ANOTHER LAW")])
def test_a_wrong_verification_fails(
    headstart: Call, tiny: Path, data: Path, monkeypatch: pytest.MonkeyPatch, temperature: str, words: str
) -> None:
    monkeypatch.setattr("headstart.engine.step.verify_batch", _credulous)
    argv = ("bench", "-m", tiny, *NGRAM, "--data", data, "--limit", 2, *SMALL, "-t", temperature, "--samples", 120)
    code, out, _ = headstart(*argv)
    assert code == 1 and f"FAIL ngram k=5, batch 1, {'greedy' if temperature == '0' else 'temperature 1'}: {words}" in out
    if temperature == "0":
        assert "logits" in out and "token" in out


@pytest.mark.parametrize("verify", ["rejection", "block", "match"])
def test_sampling_passes(headstart: Call, tiny: Path, data: Path, verify: str) -> None:
    drafts = ("--draft", tiny, "--draft-temperature", 2, "--verify", verify)
    argv = ("bench", "-m", tiny, *drafts, "--data", data, *SMALL, "-t", "0.8", "--samples", 100, "--json", "--top-p", 0.9)
    code, out, _ = headstart(*argv)
    (verdict,) = json.loads(out)["verdicts"]
    assert code == 0 and verdict["kind"] == ("tokens" if verify == "match" else "law")
    if verify != "match":
        assert verdict["details"]["drafted"] > verdict["details"]["rejected"] > 0


def test_synthetic_acceptance_is_what_was_asked_for(headstart: Call, tiny: Path, data: Path) -> None:
    argv = ("bench", "-m", tiny, "--synthetic-acceptance", 0.75, "-k", 2, "--data", data, *SMALL, "--max-tokens", 250, "--json")
    found = json.loads(headstart(*argv)[1])
    (o,) = rows(found, "synthetic 0.75 k=2")
    assert found["passed"] and o["drafted"] > 500 and all(abs(a - 0.75) < 0.06 for a in o["acceptance_per_position"])
    assert any("the speed is that of no real draft" in n for n in found["notes"])


@pytest.mark.parametrize("steps", [10, 200])
def test_an_interrupted_run_reports_what_it_has(
    headstart: Call, tiny: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr("headstart.cli.bench.Interruptible", lambda: SoonAsked(steps))
    code, out, _ = headstart("bench", "-m", tiny, *NGRAM, "--data", data, *SMALL, "--out", tmp_path)
    found = json.loads((tmp_path / "bench.json").read_text())
    assert code == 130 and found["interrupted"] and "INTERRUPTED" in out and "<html" in (tmp_path / "bench.html").read_text()
    assert bool(found["results"]) == (steps == 200) and any(note.startswith("the run was ended") for note in found["notes"])
    assert ("no verdict" in out) == (steps == 10)


def test_turns_beyond_the_context_are_left_out_and_told(headstart: Call, tiny: Path, data: Path) -> None:
    code, out, _ = headstart("bench", "-m", tiny, *NGRAM, "--data", data, *SMALL, "--max-model-len", 55)
    assert code == 0 and "turns were left out" in out


def test_a_model_made_for_benchmarks_says_so(headstart: Call, tiny: Path, data: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "headstart_grown": "grown from a seed"}))
    out = headstart("bench", "-m", tmp_path, *NGRAM, "--data", data, "--limit", 1, *SMALL, "--out", tmp_path)[1]
    for text in (out, (tmp_path / "bench.html").read_text(), "\n".join(json.loads((tmp_path / "bench.json").read_text())["notes"])):
        assert "grown from a seed" in text


BAD = [
    ((), "--draft"),
    (("--draft", "nothing"), "nothing"),
    (("--draft", "none"), "drafts nothing"),
    (("--draft", "ngram", "--draft", "ngram"), "two arms"),
    (("--draft", "ngram", "-k", "4,4"), "names a value twice"),
    (("--draft", "ngram", "-k", "0"), "--num-speculative-tokens"),
    (("--draft", "ngram", "--batch", "0"), "--batch"),
    (("--draft", "ngram", "--batch", "1,x"), "whole numbers"),
    (("--draft", "ngram", "-t", "-1"), "--temperature"),
    (("--draft", "ngram", "--limit", "0"), "--limit"),
    (("--draft", "ngram", "--repeats", "0"), "--repeats"),
    (("--draft", "ngram", "--verify", "lossy"), "lossy"),
    (("--draft", "ngram", "--draft-temperature", "1"), "no effect"),
    (("--draft", "ngram", "--max-num-seqs", "2", "--batch", "4"), "--max-num-seqs 2"),
    (("--draft", "ngram", "--max-tokens", "900"), "no question fits"),
    (("--draft", "ngram", "--data", "/nonexistent/q.jsonl"), "/nonexistent/q.jsonl"),
    (("--draft", "ngram", "--plot", "/tmp/x.txt"), ".png"),
    (("--draft", "ngram", "--plot", "/nonexistent/x.png"), "no folder"),
    (("--draft", "ngram", "--out", "/dev/null/x"), "--out /dev/null/x"),
    (("--synthetic-acceptance", "1.5"), "--synthetic-acceptance"),
    (("--synthetic-acceptance", "0.5", "-t", "1"), "--verify match"),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=lambda v: " ".join(v) if isinstance(v, tuple) else None)
def test_bad_input_is_one_line_and_exit_code_2(headstart: Call, tiny: Path, argv: tuple[str, ...], words: str) -> None:
    code, out, err = headstart("bench", "-m", tiny, "--dtype", "float32", "--kv-cache-memory", "8MiB", *argv)
    errors = [line for line in err.splitlines() if line.startswith("headstart: error: ")]
    assert code == 2 and not out and len(errors) == 1 and words in errors[0], err
