"""The commands as a user runs them: text, JSON, comparison, and one line with the right exit code when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
PROMPT = "the harbour master keeps a list of every ship the harbour master keeps"
SMALL = ("--dtype", "float32", "--device", "cpu", "--kv-cache-memory", "8MiB", "--max-tokens", "24")


def shell(*argv: object, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headstart", *map(str, argv)]
    return subprocess.run(command, input=stdin or "", capture_output=True, text=True, env={**os.environ, **env}, timeout=120)


def test_the_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys, headstart.cli.main; print(sorted({'torch', 'transformers', 'numpy', 'rich', 'prompt_toolkit'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_version_and_help(headstart: Call) -> None:
    assert headstart("--version")[:2] == (0, "headstart 0.1.0\n")
    for command in ("generate", "chat", "bench", "demo"):
        code, out, _ = headstart(command, "--help")
        assert code == 0 and command in out
    assert "--num-speculative-tokens" in headstart("generate", "--help")[1]


def test_a_pipe_gets_the_text_alone_and_drafts_do_not_change_it(headstart: Call, tiny: Path) -> None:
    code, plain, err = headstart("generate", "-m", tiny, "--raw", *SMALL, PROMPT)
    assert code == 0 and plain.strip() and "\x1b[" not in plain + err and "tokens per pass" in err
    code, drafted, err = headstart("generate", "-m", tiny, "--raw", *SMALL, "--draft", "ngram", "--prompt-lookup-min", 1, PROMPT)
    assert (code, drafted) == (0, plain)
    assert "accepted, by position" in err


def test_quiet_says_nothing_else(headstart: Call, tiny: Path) -> None:
    code, out, err = headstart("generate", "-m", tiny, *SMALL, "-q", PROMPT)
    assert code == 0 and out and not err


def test_json_document(headstart: Call, tiny: Path) -> None:
    code, out, _ = headstart("generate", "-m", tiny, "--draft", tiny, "-k", 3, "--no-adaptive", *SMALL, "--json", PROMPT, "second prompt")
    told = json.loads(out)
    assert code == 0 and told["version"] == 1 and [o["prompt"] for o in told["outputs"]] == [PROMPT, "second prompt"]
    assert told["speculative_config"]["method"] == "draft_model"
    for output in told["outputs"]:
        (completion,) = output["completions"]
        assert len(completion["token_ids"]) == len(completion["origins"]) == output["metrics"]["completion_tokens"]
        assert completion["finish_reason"] in ("stop", "length")
        stats = output["metrics"]["speculative_decoding"]
        assert 0 < stats["num_accepted_draft_tokens"] == stats["num_draft_tokens"]  # the target drafts for itself
        assert output["metrics"]["tokens_per_pass"] > 1


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_compare_says_identical(headstart: Call, tiny: Path, draft: str) -> None:
    which = tiny if draft == "model" else draft
    code, out, err = headstart("generate", "-m", tiny, "--draft", which, "--compare", *SMALL, "--ignore-eos", PROMPT)
    assert code == 0 and "identical (24 tokens)" in err and "speed-up" in err
    half = len(out) // 2
    assert out[:half] == out[half:]  # the text of both, and nothing else


def test_several_drafters_are_told_apart(headstart: Call, tiny: Path) -> None:
    args = (
        "generate",
        "-m",
        tiny,
        "--draft",
        f"ngram,prediction,{tiny}",
        *SMALL,
        "--ignore-eos",
        "--no-adaptive",
        "--prompt-lookup-min",
        1,
    )
    code, _, err = headstart(*args, "ab ab ab ab", "--compare")
    assert code == 0 and "identical (24 tokens)" in err and f"the best of ngram (match 1..1), prediction, draft_model {tiny}" in err
    told = json.loads(headstart(*args, "ab ab ab ab", "--json")[1])
    stats, (completion,) = told["outputs"][0]["metrics"]["speculative_decoding"]["drafters"], told["outputs"][0]["completions"]
    assert sum(s["num_accepted_draft_tokens"] for s in stats.values()) == sum(d is not None for d in completion["drafters"]) > 0
    code, _, err = headstart("generate", "-m", tiny, "--draft", "ngram,nosuch", "ab")
    assert code == 2 and "nosuch is no method" in err


def test_compare_as_json(headstart: Call, tiny: Path) -> None:
    code, out, _ = headstart("generate", "-m", tiny, "--draft", tiny, "--compare", *SMALL, "--json", "--ignore-eos", PROMPT)
    told = json.loads(out)["compare"]
    assert code == 0 and told["identical"] is True and told["first_difference"] is None
    assert told["plain"]["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_sampled_comparison_in_match_mode_is_identical(headstart: Call, tiny: Path) -> None:
    args = ("generate", "-m", tiny, "--draft", tiny, "--compare", *SMALL, "-t", 1, "--verify", "match", PROMPT)
    assert "identical" in headstart(*args)[2]


def test_prompts_from_files(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\nof two lines\n")
    (tmp_path / "b.jsonl").write_text('"two"\n\n{"prompt": "three"}\n')
    args = ("generate", "-m", tiny, *SMALL, "--json", "--prompt-file", tmp_path / "a.txt", "--prompt-file", tmp_path / "b.jsonl")
    assert [o["prompt"] for o in json.loads(headstart(*args)[1])["outputs"]] == ["one text\nof two lines", "two", "three"]


def test_standard_input_and_a_config_file(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'model = "{tiny}"\ndraft = "ngram"\nmax_tokens = 5\nkv_cache_memory = "8MiB"\njson = true\n')
    done = shell("generate", "--config", tmp_path / "c.toml", stdin="piped in\n")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["outputs"][0]["prompt"] == "piped in"
    assert told["outputs"][0]["metrics"]["completion_tokens"] == 5 and told["speculative_config"]["method"] == "ngram"


def test_several_completions(headstart: Call, tiny: Path) -> None:
    code, out, _ = headstart("generate", "-m", tiny, *SMALL, "--n", 3, "-t", 1, "--seed", 1, "--json", PROMPT)
    texts = [c["text"] for c in json.loads(out)["outputs"][0]["completions"]]
    assert code == 0 and len(set(texts)) == 3


BAD = [
    (("generate", "hello"), "--model"),
    (("generate", "-m", "{tiny}", ""), "empty"),
    (("generate", "-m", "{tiny}", "--prompt-file", "/nonexistent/x.txt"), "/nonexistent/x.txt"),
    (("generate", "-m", "/nonexistent/model", "hello"), "/nonexistent/model"),
    (("generate", "-m", "{tiny}", "--tokenizer", "/nonexistent/tok", "hello"), "/nonexistent/tok"),
    (("generate", "-m", "{tiny}", "--bogus", "hello"), "--bogus"),
    (("generate", "-m", "{tiny}", "--draft", "16", "hello"), "--num-speculative-tokens 16"),
    (("generate", "-m", "{tiny}", "--draft", "ngrm", "hello"), "ngram"),
    (("generate", "-m", "{tiny}", "--draft", "draft_model", "hello"), "--draft MODEL"),
    (("generate", "-m", "{tiny}", "--draft", "/nonexistent/draft", "hello"), "/nonexistent/draft"),
    (("generate", "-m", "{tiny}", "-k", "4", "hello"), "--draft ngram"),
    (("generate", "-m", "{tiny}", "--draft", "ngram", "-k", "4", "--draft-max", "5", "hello"), "contradicts"),
    (("generate", "-m", "{tiny}", "--draft", "ngram", "--spec-method", "none", "hello"), "contradicts"),
    (("generate", "-m", "{tiny}", "--draft", "ngram", "--draft-temperature", "1", "hello"), "draft_temperature"),
    (("generate", "-m", "{tiny}", "-t", "-1", "hello"), "temperature"),
    (("generate", "-m", "{tiny}", "--max-tokens", "many", "hello"), "--max-tokens"),
    (("generate", "-m", "{tiny}", "--compare", "hello"), "--draft"),
    (("generate", "-m", "{tiny}", "-sc", "{{", "hello"), "JSON"),
    (("generate", "-m", "{tiny}", "-sc", '{{"methd": "ngram"}}', "hello"), "method"),
    (("generate", "-m", "{base}", "--chat", "hello"), "chat template"),
    (("generate", "-m", "{base}", "--system", "s", "hello"), "--system"),
    (("generate", "-m", "{tiny}", "--raw", "--max-model-len", "8", PROMPT), "8"),
    (("chat", "-m", "{base}"), "chat template"),
    (("chat", "-m", "{tiny}", "--n", "2"), "--n"),
    (("generat",), "generate"),
    (("--model", "x", "hello"), "headstart generate"),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=lambda v: " ".join(v[1:]) if isinstance(v, tuple) else None)
def test_bad_input_is_one_line_and_exit_code_2(headstart: Call, tiny: Path, base: Path, argv: tuple[str, ...], words: str) -> None:
    code, out, err = headstart(*(a.format(tiny=tiny, base=base) for a in argv))
    errors = [line for line in err.splitlines() if line.startswith("headstart: error: ")]
    assert code == 2 and not out and len(errors) == 1 and words in errors[0] and "Traceback" not in err
    if argv[0] == "generate" and "chat template" not in words and words != "8":
        assert err.count("\n") <= 4  # at most the start-up lines before it


def test_a_bug_is_one_line_and_exit_code_1(headstart: Call, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("headstart.cli.generate.gather", broken)
    code, _, err = headstart("generate", "-m", tiny, "x")
    assert code == 1 and err.count("\n") == 1 and "RuntimeError: two lines" in err and "HEADSTART_DEBUG=1" in err
    monkeypatch.setenv("HEADSTART_DEBUG", "1")
    assert "Traceback" in headstart("generate", "-m", tiny, "x")[2]


def test_a_reader_that_goes_away(tiny: Path) -> None:
    argv = f"generate --json -m {tiny} --kv-cache-memory 8MiB --n 4 --max-tokens 100 --ignore-eos -t 1 hello"
    command = f"{sys.executable} -m headstart {argv} | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_chat_without_a_terminal(tiny: Path) -> None:
    turns = "hello\n/stats\n/nope\nagain\n/clear\n/bye\nnever read\n"
    done = shell(
        "chat", "-m", tiny, "--kv-cache-memory", "8MiB", "--max-tokens", 8, "--seed", 3, "--ignore-eos", "--draft", "ngram", stdin=turns
    )
    assert done.returncode == 0 and done.stdout and "\x1b[" not in done.stdout
    assert "last answer" in done.stderr and "there is no /nope" in done.stderr and "forgotten" in done.stderr
