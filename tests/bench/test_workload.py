"""Questions from files of several shapes, and what is said about a file that is none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart.bench.workload import load
from headstart.core.errors import ConfigError


def test_built_in_questions_cover_six_kinds() -> None:
    questions = load()
    assert {q.category for q in questions} == {"chat", "summary", "code", "extraction", "translation", "reasoning"}
    assert {q.category for q in load(limit=6)} == {q.category for q in questions}
    assert any(len(q.turns) > 1 for q in questions)


def test_shapes(tmp_path: Path) -> None:
    lines = [
        {"question_id": 7, "category": "writing", "turns": ["one", "two"]},
        {"id": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "x"}, {"from": "human", "value": "b"}]},
        {"prompt": "p"},
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    got = [(q.id, q.category, q.turns) for q in load(file)]
    assert got == [("7", "writing", ("one", "two")), ("s", "all", ("a", "b")), ("3", "all", ("p",))]
    array = tmp_path / "q.json"
    array.write_text(json.dumps(lines, indent=1))
    assert load(array) == load(file)


BAD = [
    ("", "no question"),
    ('{"turns": ["a"]}\n{"turns": [}\n', "line 2 is not JSON"),
    ('{"turns": ["a"]}\n\n{"question": "b"}\n', "line 3 has 'question': expected"),
    ('{"turns": []}', 'line 1: "turns"'),
    ('{"turns": ["a", " "]}', "no empty one"),
    ('{"turns": "a"}', "at least one user text"),
    ('"a"', "line 1 is"),
    ('{"conversations": ["a"]}', '"from" and "value"'),
    ('{"conversations": [{"from": "gpt", "value": "a"}]}', "at least one user text"),
    ('{"id": 1, "turns": ["a"]}\n{"id": 1, "turns": ["b"]}', "same id"),
    ('[{"turns": ["a"]},\n 5]', "entry 2 is 5"),
    ('[{"turns": ["a"]},\n', "line 2 is not JSON"),
]


@pytest.mark.parametrize(("content", "words"), BAD)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError) as e:
        load(file)
    assert words in str(e.value) and str(file) in str(e.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.jsonl")
