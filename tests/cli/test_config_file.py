"""`--config`: any option in any spelling, the command line wins, an unknown key names the nearest one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.cli.aliases import read
from headstart.cli.configfile import load, merge
from headstart.core.errors import ConfigError
from tests.cli.test_aliases import GENERATE, KNOWN


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.toml"


def merged(file: Path, text: str, *argv: str) -> list[str]:
    file.write_text(text)
    return merge(read(list(argv), GENERATE), load(str(file), GENERATE, KNOWN), GENERATE).argv()


def test_keys_with_either_dash_flags_lists_and_aliases(file: Path) -> None:
    text = 'model = "m"\nmax-tokens = 7\ntop_p = 0.5\njson = true\nprefix-caching = false\nstop = ["a", "b"]\ndraft_max = 3\n'
    expected = "--model m --max-tokens 7 --top-p 0.5 --json --no-prefix-caching --stop a --stop b --num-speculative-tokens 3"
    assert merged(file, text) == expected.split()


def test_the_command_line_wins_by_any_spelling(file: Path) -> None:
    assert merged(file, "num_speculative_tokens = 3", "--draft-max", "9") == ["--num-speculative-tokens", "9"]
    assert merged(file, 'stop = ["a"]', "--stop", "z") == ["--stop", "z"]
    assert merged(file, "prefix_caching = false", "--prefix-caching") == ["--prefix-caching"]
    assert merged(file, 'draft = "ngram"', "--spec-method", "none") == ["--speculative-config", '{"method": "none"}']
    assert merged(file, '[speculative_config]\nmethod = "ngram"\nnum_speculative_tokens = 2', "-d", "none", "-k", "0") == (
        ["--draft", "none", "--num-speculative-tokens", "0"]
    )


def test_sections_hold_what_one_command_takes(file: Path) -> None:
    assert merged(file, 'model = "m"\n[generate]\njson = true\n[chat]\nsystem = "s"') == ["--model", "m", "--json"]
    assert merged(file, "max_tokens = 5\n[generate]\nmax-new-tokens = 9") == ["--max-tokens", "9"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_token = 3", "max-tokens"),
        ("nonsense = 3", "nonsense"),
        ("json = 3", "true or false"),
        ("top_p = [1]", "number or text"),
        ("fetch_only = true", r"\[demo\]"),
        ("[chat]\nmax_token = 3", "max-tokens"),
        ("a = ", "not TOML"),
        ('config = "x"', "cannot name another"),
        ("num_draft_tokens = 3\ndraft_max = 4", "contradicts"),
    ],
)
def test_errors_name_the_key(file: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        merged(file, text)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "none.toml"), GENERATE, KNOWN)
