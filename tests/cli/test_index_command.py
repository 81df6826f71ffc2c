"""`headstart index` and `--draft corpus:`, `--draft suffix`, `--prediction` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
SMALL = ("--dtype", "float32", "--device", "cpu", "--kv-cache-memory", "8MiB", "--max-tokens", "24", "--ignore-eos")
PROMPT = "the harbour master keeps a list of every ship the harbour master keeps"


@pytest.fixture
def answer(headstart: Call, tiny: Path, tmp_path: Path) -> Path:
    """What the tiny model says without drafts."""
    path = tmp_path / "answer.txt"
    path.write_text(headstart("generate", "-m", tiny, "--raw", *SMALL, "-q", PROMPT)[1].rstrip("\n"))
    return path


def stats(out: str) -> tuple[dict, dict]:
    output = json.loads(out)["outputs"][0]
    return output, output["metrics"]["speculative_decoding"]


def test_build_add_info_and_draft(headstart: Call, tiny: Path, tmp_path: Path, answer: Path) -> None:
    index = tmp_path / "idx"
    lines = tmp_path / "more.jsonl"
    lines.write_text('"one line"\n\n{"text": "another line"}\n')
    (tmp_path / "empty.txt").write_text("")
    code, _, err = headstart("index", "build", "--tokenizer", tiny, "--out", index, answer, tmp_path / "empty.txt")
    assert code == 0 and "in 1 documents" in err and "empty.txt holds no text" in err
    code, out, _ = headstart("index", "add", "--out", index, lines, "--json")
    assert code == 0 and json.loads(out)["documents"] == 3
    code, out, _ = headstart("index", "info", index)
    assert code == 0 and str(tiny) in out and "documents   3" in out
    code, out, err = headstart("generate", "-m", tiny, "--raw", *SMALL, "--json", "--no-adaptive", "--draft", f"corpus:{index}", PROMPT)
    output, found = stats(out)
    assert code == 0 and output["completions"][0]["text"] == answer.read_text()
    assert found["num_accepted_draft_tokens"] > 0, "the corpus holds the answer"


def test_prediction_from_a_file(headstart: Call, tiny: Path, answer: Path) -> None:
    """Also without any other drafter."""
    code, out, _ = headstart(
        "generate", "-m", tiny, "--raw", *SMALL, "--json", "--draft", "none", "--no-adaptive", "--prediction", answer, PROMPT
    )
    output, found = stats(out)
    metrics = output["metrics"]
    assert code == 0 and output["completions"][0]["text"] == answer.read_text()
    assert metrics["accepted_prediction_tokens"] == found["num_accepted_draft_tokens"] > 3
    code, _, err = headstart("generate", "-m", tiny, "--raw", *SMALL, "--compare", "--prediction", answer, PROMPT)
    assert code == 0 and "identical" in err


def test_suffix_says_what_runs_and_drafts(headstart: Call, tiny: Path, answer: Path) -> None:
    code, out, err = headstart("generate", "-m", tiny, "--raw", *SMALL, "--no-adaptive", "--draft", "suffix", PROMPT)
    assert code == 0 and out.rstrip("\n") == answer.read_text() and "speculation: suffix, up to k=24" in err
    code, out, _ = headstart(
        "generate", "-m", tiny, "--raw", *SMALL, "-q", "--no-adaptive", "--draft", "tests.draft.foreign_drafters:Repeats", PROMPT
    )
    assert code == 0 and out.rstrip("\n") == answer.read_text()


def test_errors_are_one_line_with_exit_code_2(headstart: Call, tiny: Path, base: Path, tmp_path: Path, answer: Path) -> None:
    index, empty = tmp_path / "idx", tmp_path / "empty.txt"
    empty.write_text(" \n")
    (tmp_path / "bad.jsonl").write_text('"x"\n{"prompt": "y"}\n')
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    assert headstart("index", "build", "--tokenizer", tiny, "--out", index, answer)[0] == 0
    for argv, words in (
        (("index", "make"), "no action 'make'"),
        (("index", "build", "--tokenizer", tiny, answer), "--out"),
        (("index", "build", "--tokenizer", tiny, "--out", index), "needs files"),
        (("index", "build", "--out", tmp_path / "new", answer), "--tokenizer"),
        (("index", "build", "--tokenizer", tmp_path / "no", "--out", tmp_path / "new", answer), "no"),
        (("index", "build", "--tokenizer", tiny, "--out", index, answer), "already"),
        (("index", "build", "--tokenizer", tiny, "--out", tmp_path / "new", empty), "no text"),
        (("index", "build", "--tokenizer", tiny, "--out", tmp_path / "new", tmp_path / "gone.txt"), "cannot be read"),
        (("index", "build", "--tokenizer", tiny, "--out", tmp_path / "new", tmp_path / "bytes.txt"), "UTF-8"),
        (("index", "build", "--tokenizer", tiny, "--out", tmp_path / "new", tmp_path / "bad.jsonl"), "line 2"),
        (("index", "add", "--out", tmp_path / "new", answer), "not a corpus index"),
        (("index", "info"), "index info INDEX"),
        (("generate", "-m", tiny, "--draft", "corpus", "x"), "corpus:PATH"),
        (("generate", "-m", tiny, "--draft", f"corpus:{tmp_path / 'none'}", "x"), "no such folder"),
        (("generate", "-m", tiny, "--draft", "suffx", "x"), "suffix"),
        (("generate", "-m", tiny, "--draft", "no_package.here:Drafter", "x"), "PYTHONPATH"),
        (("generate", "-m", tiny, "--prediction", tmp_path / "gone.txt", "x"), "--prediction"),
    ):
        code, out, err = headstart(*argv)
        last = err.strip().splitlines()[-1]
        assert code == 2 and not out and last.startswith("headstart: error: ") and words in last, (argv, code, err)


def test_an_index_of_another_tokenizer_is_refused(headstart: Call, tiny: Path, tmp_path: Path, answer: Path) -> None:
    index = tmp_path / "idx"
    headstart("index", "build", "--tokenizer", tiny, "--out", index, answer)
    manifest = json.loads((index / "index.json").read_text())
    (index / "index.json").write_text(json.dumps({**manifest, "fingerprint": "0" * 64}))
    code, _, err = headstart("generate", "-m", tiny, "--draft", f"corpus:{index}", "x")
    assert code == 2 and "tokenizer" in err
    code, _, err = headstart("index", "add", "--out", index, answer)
    assert code == 2 and "another tokenizer" in err
