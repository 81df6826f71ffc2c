"""Sampling options on the command line: each acts, or is refused with what to write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
SMALL = ("--dtype", "float32", "--device", "cpu", "--kv-cache-memory", "8MiB", "--max-tokens", "24", "--raw")
PROMPT = "the harbour master keeps a list of every ship the harbour master keeps"
SCHEMA = '{"enum": ["yes", "no"]}'


@pytest.mark.parametrize(
    "options",
    [
        ("--presence-penalty", "1.5"),
        ("--frequency-penalty", "-1.5"),
        ("--repetition-penalty", "1.8"),
        ("--logit-bias", "40=5", "--logit-bias", "41=4.5"),
        ("--bad-word", "each", "--bad-word", "read"),
        ("--regex", "[0-9]{5,9}"),
    ],
)
def test_an_option_changes_the_text_and_drafts_do_not(headstart: Call, tiny: Path, options: tuple[str, ...]) -> None:
    free = headstart("generate", "-m", tiny, *SMALL, PROMPT)
    plain = headstart("generate", "-m", tiny, *SMALL, *options, PROMPT)
    drafted = headstart("generate", "-m", tiny, *SMALL, *options, "--draft", tiny, PROMPT)
    assert free[0] == plain[0] == drafted[0] == 0
    assert free[1] != plain[1] == drafted[1]


def test_answers_of_a_form(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA)
    (tmp_path / "grammar.lark").write_text('start: "yes" | "no"')
    for schema in (SCHEMA, tmp_path / "schema.json"):
        code, out, _ = headstart("generate", "-m", tiny, *SMALL, "--json-schema", schema, "--draft", "ngram", PROMPT)
        assert code == 0 and json.loads(out) in ("yes", "no")
    for asked in (("--grammar", tmp_path / "grammar.lark"), ("--choice", "yes", "--choice", "no")):
        code, out, _ = headstart("generate", "-m", tiny, *SMALL, *asked, "--draft", "ngram", PROMPT)
        assert code == 0 and out.strip() in ("yes", "no")


def test_log_probabilities_in_the_document(headstart: Call, tiny: Path) -> None:
    code, out, _ = headstart("generate", "-m", tiny, *SMALL, "--json", "--logprobs", 2, "--draft", "ngram", PROMPT)
    (completion,) = json.loads(out)["outputs"][0]["completions"]
    assert code == 0 and len(completion["logprobs"]) == len(completion["token_ids"])
    assert [entry[0]["token_id"] for entry in completion["logprobs"]] == completion["token_ids"]
    assert completion["cumulative_logprob"] == pytest.approx(sum(entry[0]["logprob"] for entry in completion["logprobs"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--logprobs", "2"), "add --json"),
        (("--logprobs", "50", "--json"), "max_logprobs=20"),
        (("--logit-bias", "x=1"), "42=-100"),
        (("--logit-bias", "5"), "42=-100"),
        (("--logit-bias", "999999=1"), "vocabulary"),
        (("--json-schema", "missing.json"), "missing.json"),
        (("--json-schema", '{"type": "thing"}'), "Invalid type"),
        (("--json-schema", "{"), "not a JSON schema"),
        (("--regex", "("), "unclosed group"),
        (("--regex", "a", "--choice", "b"), "exactly one"),
        (("--min-tokens", "99"), "max_tokens=24"),
        (("--repetition-penalty", "0"), "repetition_penalty"),
    ],
)
def test_what_cannot_be_had_is_one_line(headstart: Call, tiny: Path, options: tuple[str, ...], words: str) -> None:
    code, out, err = headstart("generate", "-m", tiny, *SMALL, "-q", *options, PROMPT)
    assert code == 2 and not out and words in err and "Traceback" not in err and len(err.strip().splitlines()) == 1
