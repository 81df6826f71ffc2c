"""Tools: what a request offers and demands, and the calls in the text of a model, `<tool_call>{json}</tool_call>` (Hermes, Qwen)
or the bare JSON object (Llama 3).

Finds them by plain search, in time linear in the text. What does not parse stays text: nothing a model wrote is lost.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.core.stopping import held_back
from headstart.server.errors import invalid
from headstart.server.limits import Limits, at_most, check_schema
from headstart.server.shapes import ChatRequest

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    """A call; `arguments` is JSON text, as OpenAI has it."""

    name: str
    arguments: str


def parse_call(text: str, names: Collection[str]) -> ToolCall | None:
    """A JSON object with a known "name" and an object "arguments" (or "parameters"); None when it is anything else."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or given["name"] not in names:
        return None
    arguments = given.get("arguments", given.get("parameters", {}))
    return ToolCall(given["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


class ToolReader:
    """Splits a growing text into content and calls. Invariant: what it has given out is never taken back.

    `feed` takes the whole text so far. Text that may become a call is held until it has.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self._at = 0  # everything before this was given out
        self._searched = 0  # no CLOSE ends before this
        self.calls: list[ToolCall] = []

    def feed(self, text: str, ended: bool) -> tuple[str, list[ToolCall]]:
        """(content, calls) that became certain."""
        content: list[str] = []
        before = len(self.calls)
        if self._bare(text):
            if not ended:
                return "", []
            call = parse_call(text, self.names)
            if call is not None:
                self.calls.append(call)
                self._at = len(text)
                return "", [call]
        while True:
            start = text.find(OPEN, self._at)
            if start < 0:
                stop = len(text) if ended else len(text) - held_back(text[self._at :][-len(OPEN) :], (OPEN,))
                content.append(text[self._at : stop])
                self._at = stop
                break
            content.append(text[self._at : start])
            self._at = start
            inner = start + len(OPEN)
            end = text.find(CLOSE, max(inner, self._searched))
            if end < 0 and not ended:
                self._searched = max(inner, len(text) - len(CLOSE))
                break
            call = parse_call(text[inner : end if end >= 0 else len(text)], self.names)
            after = end + len(CLOSE) if end >= 0 else len(text)
            if call is None:
                content.append(text[start:after])
            else:
                self.calls.append(call)
            self._at = after
        said = "".join(content)
        if self.calls and not said.strip():
            said = ""  # the line breaks between calls
        return said, self.calls[before:]

    def _bare(self, text: str) -> bool:
        """Whether the whole text may be one call without marks."""
        return self._at == 0 and not self.calls and text.lstrip()[:1] == "{"


def forced_schema(tools: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """The JSON schema of a call of one of the tools, or of the one named. Raises ValueError when their `$defs` collide."""
    kinds: list[dict[str, Any]] = []
    shared: dict[str, dict[str, Any]] = {}  # a "$ref" counts from the root, so the tools' definitions move there
    for function in (tool["function"] for tool in tools):
        if name is not None and function["name"] != name:
            continue
        arguments = dict(function.get("parameters") or {"type": "object"})
        for key in ("$defs", "definitions"):
            for defined, schema in (arguments.pop(key, None) or {}).items():
                if shared.setdefault(key, {}).setdefault(defined, schema) != schema:
                    raise ValueError(f"two tools define {defined!r} differently in {key}: rename one of them")
        properties = {"name": {"const": function["name"]}, "arguments": arguments}
        kinds.append({"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": False})
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), **shared}


def tool_names(asked: ChatRequest, limits: Limits) -> list[str]:
    """The names of the tools that may be called; none when there are none or `tool_choice` is "none". Raises ApiError 400."""
    tools = asked.tools or []
    at_most("tools", len(tools), limits.tools, "tools")
    names = []
    for i, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"tools[{i}] must be {{'type': 'function', 'function': {{'name': ..., 'parameters': {{...}}}}}}", "tools")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise invalid(f"tools[{i}]: parameters must be a JSON schema", "tools")
        names.append(function["name"])
    check_schema("tools", tools, limits)
    return [] if asked.tool_choice == "none" else names


def forced_tool(asked: ChatRequest, limits: Limits) -> dict[str, Any] | None:
    """The schema of the call that `tool_choice` demands; None when it demands none. Raises ApiError 400."""
    names, choice = tool_names(asked, limits), asked.tool_choice
    if choice in (None, "auto", "none"):
        return None
    name = None
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or name not in names:
            raise invalid(f"tool_choice names no tool of this request: its tools are {', '.join(names)[:300] or 'none'}", "tool_choice")
    elif choice != "required":
        raise invalid(f"tool_choice={str(choice)[:60]!r} must be auto, none, required or a function", "tool_choice")
    if not names:
        raise invalid("tool_choice='required' needs tools", "tool_choice")
    try:
        return forced_schema(asked.tools or [], name)
    except ValueError as e:
        raise invalid(f"tools: {e}", "tools") from None
