"""Where prompts come from: arguments, files, or what is piped in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from headstart.core.errors import ConfigError


def gather(arguments: Sequence[str], files: Sequence[str]) -> list[str]:
    """All prompts in order; "-" and nothing at all mean standard input. Raises ConfigError when there is none or one is empty."""
    prompts = [_stdin() if a == "-" else a for a in arguments]
    for name in files:
        prompts += _from_file(name)
    if not prompts:
        if sys.stdin is None or sys.stdin.isatty():
            raise ConfigError('there is no prompt: write headstart generate --model M "your prompt", or --prompt-file FILE, or pipe it in')
        prompts = [_stdin()]
    for i, prompt in enumerate(prompts):
        if not prompt.strip():
            which = "the prompt" if len(prompts) == 1 else f"prompt {i + 1} of {len(prompts)}"
            raise ConfigError(f"{which} is empty: write some text")
    return prompts


def read_text(option: str, name: str) -> str:
    """The text of a file that an option names. Raises ConfigError."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{option} {name} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{option} {name} is not UTF-8 text ({e.reason} at byte {e.start})") from None


def _stdin() -> str:
    try:
        return sys.stdin.read().strip("\n")
    except UnicodeDecodeError as e:
        raise ConfigError(f"standard input is not UTF-8 text ({e.reason} at byte {e.start})") from None


def _from_file(name: str) -> list[str]:
    """A text file is one prompt; a .jsonl file is one per line: a string, or an object with "prompt"."""
    text = read_text("--prompt-file", name)
    if not name.endswith(".jsonl"):
        return [text.strip("\n")]
    return list(json_lines(f"--prompt-file {name}", text, "prompt"))


def json_lines(said: str, text: str, key: str) -> Iterator[str]:
    """The strings of JSON lines: each a string, or an object with `key`. `said` names the file in errors. Raises ConfigError."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as e:
            raise ConfigError(f"{said}, line {number} is not JSON: {e}") from None
        item = item.get(key) if isinstance(item, dict) else item
        if not isinstance(item, str):
            raise ConfigError(f'{said}, line {number} must be a string or an object with "{key}"')
        yield item
