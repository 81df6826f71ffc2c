"""Tool calls: found in the text in both common forms, forced by a grammar, whole and streamed in any pieces."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from headstart.server.tools import ToolCall, ToolReader, forced_schema, parse_call
from tests.server.conftest import Running, chat

NAMES = ("weather", "add")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "ü"}}\n</tool_call>'
ADD = ToolCall("add", '{"a": 1, "b": "ü"}')
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
OTHER = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
TEXTS = [
    ("plain words < not a call", "plain words < not a call", []),
    (CALL, "", [ADD]),
    (f"I shall add. {CALL}", "I shall add. ", [ADD]),
    (f"{CALL}\n{CALL}", "", [ADD, ADD]),
    ('<tool_call>{"name": "add", "arguments": {}}', "", [ToolCall("add", "{}")]),  # its end was cut off by EOS
    ('{"name": "add", "parameters": {"a": 2}}', "", [ToolCall("add", '{"a": 2}')]),
    ('{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
    ("<tool_call>not json</tool_call> rest", "<tool_call>not json</tool_call> rest", []),
    ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ('<tool_call>{"name": ["add"]}</tool_call>', '<tool_call>{"name": ["add"]}</tool_call>', []),
    ('{"a": 1} and more', '{"a": 1} and more', []),
    ("the end <tool_c", "the end <tool_c", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), TEXTS)
def test_calls_are_found_whole_and_in_pieces(text: str, content: str, calls: list[ToolCall]) -> None:
    assert ToolReader(NAMES).feed(text, True) == (content, calls)
    for seed in range(40):
        rng, reader, at = random.Random(seed), ToolReader(NAMES), 0
        said, found = "", []
        while at < len(text):
            at = min(len(text), at + rng.randint(1, 7))
            new, more = reader.feed(text[:at], at == len(text))
            said, found = said + new, found + more
        assert (said.strip(), found) == (content.strip(), calls)


def test_reading_is_linear_in_long_text_that_almost_matches() -> None:
    def seconds(size: int) -> float:
        text, reader = "<tool_call>" + "</tool_cal" * size, ToolReader(NAMES)
        start = time.perf_counter()
        for at in range(0, len(text), 64):
            reader.feed(text[:at], False)
        reader.feed(text, True)
        return time.perf_counter() - start

    small, large = min(seconds(1000) for _ in range(3)), min(seconds(4000) for _ in range(3))
    assert large < 16 * small + 0.5 and large < 5  # slices of the prefix alone are quadratic in bytes copied, and cheap
    deep = "[" * 200_000
    assert parse_call(f'{{"name": "add", "arguments": {deep}', NAMES) is None


def test_definitions_of_tools_move_to_the_root() -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": kind}}}
        return {"function": {"name": name, "parameters": parameters}}

    schema = forced_schema([tool("a", "string"), tool("b", "string")], None)
    assert schema["$defs"] == {"X": {"type": "string"}} and len(schema["anyOf"]) == 2
    with pytest.raises(ValueError, match="differently"):
        forced_schema([tool("a", "string"), tool("b", "number")], None)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_has_the_form_of_its_schema(server: Running, choice: Any) -> None:
    asked = {"tools": [TOOL, OTHER], "tool_choice": choice, "max_tokens": 400, "temperature": 1, "seed": 7}
    choice_ = chat(server, **asked).json()["choices"][0]
    assert choice_["finish_reason"] == "tool_calls" and choice_["message"]["content"] is None
    (call,) = choice_["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments["city"] in ("Oslo", "Rome") and arguments["days"] in (1, 2)
    else:
        assert choice == "required" and arguments == {}
    assert call["type"] == "function" and call["id"].startswith("call_")


def test_a_call_that_the_model_writes_by_itself(server: Running) -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    twice = {"guided_choice": [text + text], "max_tokens": 200, "tools": [TOOL, OTHER]}
    message = chat(server, **twice).json()["choices"][0]["message"]
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["now", "now"]
    assert len(chat(server, **twice, parallel_tool_calls=False).json()["choices"][0]["message"]["tool_calls"]) == 1
    none = chat(server, **{**twice, "tool_choice": "none"}).json()["choices"][0]
    assert "tool_calls" not in none["message"] and none["message"]["content"] == text + text


def test_wrong_tools_are_named(server: Running) -> None:
    for fields, param in (
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{**TOOL, "type": "retrieval"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [TOOL] * 200}, "tools"),
    ):
        answer = chat(server, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
