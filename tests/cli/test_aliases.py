"""Spellings: every documented one becomes ours, what would mean something else is refused, contradictions are errors."""

from __future__ import annotations

import json
import typing

import pytest
import typer

from headstart.cli.aliases import ALIASES, Known, read
from headstart.cli.main import _known, app
from headstart.core.errors import ConfigError

KNOWN: dict[str, Known] = {name: _known(name, c) for name, c in typing.cast(typing.Any, typer.main.get_command(app)).commands.items()}
GENERATE = KNOWN["generate"]


def argv(*given: str) -> list[str]:
    return read(list(given), GENERATE).argv()


DRAFT = """-md --model-draft --spec-draft-model --assistant-model --speculative-model --draft-model --spec-model -hfd
--speculative-draft-model-path"""
LENGTH = """--spec-draft-n-max --draft-max --num-draft-tokens --speculative-num-draft-tokens --num-assistant-tokens --spec-tokens
--prompt-lookup-num-tokens --num_speculative_tokens -ndt"""


@pytest.mark.parametrize("spelled", DRAFT.split())
def test_draft_model_spellings(spelled: str) -> None:
    assert argv(spelled, "org/d") == ["--draft", "org/d"]


@pytest.mark.parametrize("spelled", LENGTH.split())
def test_length_spellings(spelled: str) -> None:
    assert argv(spelled, "7") == ["--num-speculative-tokens", "7"]


@pytest.mark.parametrize("spelled", ["-m", "--model-path", "--model", "-hf"])
def test_model_spellings(spelled: str) -> None:
    assert argv(spelled, "org/m") == ["--model", "org/m"]


@pytest.mark.parametrize("spelled", ["--spec-method", "--spec-type", "--speculative-algorithm", "--speculative-config.method"])
@pytest.mark.parametrize(
    ("value", "method"), [("ngram", "ngram"), ("NGRAM", "ngram"), ("ngram-simple", "ngram"), ("draft-simple", "draft_model")]
)
def test_method_spellings(spelled: str, value: str, method: str) -> None:
    flag, document = argv(spelled, value)
    assert (flag, json.loads(document)) == ("--speculative-config", {"method": method})


def test_every_alias_leads_to_an_option_that_exists() -> None:
    for alias, name in ALIASES.items():
        assert any(name in k.names or name.startswith("--speculative-config.") for k in KNOWN.values()), alias


def test_json_and_dotted_keys_merge() -> None:
    line = read(["-sc", '{"method": "ngram", "prompt-lookup-max": 4}', "--speculative-config.num-speculative-tokens", "6"], GENERATE)
    assert line.spec == {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 6}


def test_values_and_prompts_are_left_alone() -> None:
    assert argv("--system", "-md", "hello", "--", "--draft-max") == ["--system", "-md", "--", "hello", "--draft-max"]
    assert argv("--seed=-5", "-") == ["--seed", "-5", "--", "-"]


@pytest.mark.parametrize(
    "given",
    [
        ("--num-speculative-tokens", "5", "--draft-max", "7"),
        ("-md", "org/a", "--assistant-model", "org/b"),
        ("-sc", '{"method": "ngram"}', "--spec-method", "draft_model"),
    ],
)
def test_contradictions(given: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="contradicts"):
        argv(*given)


def test_the_same_value_twice_is_no_contradiction() -> None:
    assert argv("-k", "5", "--draft-max", "5") == ["--num-speculative-tokens", "5"] * 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--draft-p-min", "confidence"),
        ("--speculative-accept-threshold-single", "lossless"),
        ("--draft-min", "no minimum"),
        ("--spec-ngram-size-n", "--prompt-lookup-max"),
        ("-n", "--max-tokens"),
        ("--num-spec", "did you mean --num-speculative-tokens"),
        ("--temprature", "did you mean --temperature"),
        ("--asistant-model", "did you mean --draft"),
        ("--xyzzy", "headstart generate --help"),
    ],
)
def test_refused_and_unknown(given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        argv(given, "1")


def test_a_flag_takes_no_value_and_an_option_needs_one() -> None:
    with pytest.raises(ConfigError, match="takes no value"):
        argv("--json=yes")
    with pytest.raises(ConfigError, match="needs a value"):
        argv("--model")
