"""What is asked: the built-in questions, or a file of them. Every mistake in a file is named with its line.

A line is an object with "turns" (Spec-Bench), "conversations" (ShareGPT; the assistant's turns there are dropped, since
each arm answers for itself) or "prompt". "category" groups the report, "id" names a question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from headstart.core.errors import ConfigError

BUILT_IN = Path(__file__).with_name("questions.jsonl")
_SHAPE = 'an object with "turns": ["...", ...], "conversations": [{"from": "human", "value": "..."}, ...] or "prompt": "..."'
_HUMAN = ("human", "user")


@dataclass(frozen=True)
class Question:
    """User turns that one conversation asks, one after the other."""

    id: str
    category: str
    turns: tuple[str, ...]


def load(path: str | Path | None = None, limit: int | None = None, option: str = "--data") -> list[Question]:
    """The questions of a .jsonl file (or a .json array), or the built-in ones, their categories taken in turns.

    limit: at most so many. option: which option named the file. Raises ConfigError with the file, the line and what was
    expected there.
    """
    said = f"{option} {path or BUILT_IN}"
    found = [_question(item, where, n) for n, (where, item) in enumerate(_items(str(path or BUILT_IN), said), 1)]
    if not found:
        raise ConfigError(f"{said} holds no question: write one JSON object a line, {_SHAPE}")
    seen: dict[str, int] = {}
    for n, question in enumerate(found, 1):
        if question.id in seen:
            raise ConfigError(f"{said}: questions {seen[question.id]} and {n} have the same id {question.id!r}: give each its own")
        seen[question.id] = n
    return _mixed(found)[:limit]


def _items(name: str, said: str) -> Iterator[tuple[str, Any]]:
    """(where, JSON value) of every entry."""
    try:
        text = Path(name).expanduser().read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{said} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{said} is not UTF-8 text ({e.reason} at byte {e.start})") from None
    if text.lstrip().startswith("["):
        for n, item in enumerate(_parse(text, said, 0), 1):
            yield f"{said}, entry {n}", item
        return
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{said}, line {n}", _parse(line, said, n - 1)


def _parse(text: str, where: str, lines_before: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        line = lines_before + e.lineno
        raise ConfigError(f"{where}, line {line} is not JSON ({e.msg} at character {e.colno}): expected {_SHAPE}") from None
    except RecursionError:
        raise ConfigError(f"{where}, line {lines_before + 1} is nested too deeply: expected {_SHAPE}") from None


def _question(item: Any, where: str, number: int) -> Question:
    if not isinstance(item, dict):
        raise ConfigError(f"{where} is {json.dumps(item)[:40]}: expected {_SHAPE}")
    if "turns" in item:
        key, turns = "turns", item["turns"]
    elif "conversations" in item:
        key, turns = "conversations", _human_turns(item["conversations"], where)
    elif "prompt" in item:
        key, turns = "prompt", [item["prompt"]]
    else:
        raise ConfigError(f"{where} has {', '.join(map(repr, item)) or 'nothing'}: expected {_SHAPE}")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ConfigError(f'{where}: "{key}" must hold at least one user text and no empty one: expected {_SHAPE}')
    name = next((item[k] for k in ("id", "question_id") if item.get(k) is not None), number)
    return Question(str(name), str(item.get("category") or "all"), tuple(turns))


def _human_turns(messages: Any, where: str) -> list[Any]:
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "value" in m for m in messages):
        raise ConfigError(f'{where}: "conversations" must be a list of objects with "from" and "value"')
    return [m["value"] for m in messages if m.get("from") in _HUMAN]


def _mixed(questions: list[Question]) -> list[Question]:
    """Categories in turns, so that a limited or interrupted run has seen all of them, and a batch is mixed like traffic."""
    by_category: dict[str, list[Question]] = {}
    for q in questions:
        by_category.setdefault(q.category, []).append(q)
    return [q for row in zip_longest(*by_category.values()) for q in row if q is not None]
