"""Messages as chat templates take them: text contents, known roles, arguments of calls as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headstart.server.errors import invalid
from headstart.server.limits import Limits, at_most

_ROLES = ("system", "developer", "user", "assistant", "tool")


def messages_of(given: list[dict[str, Any]], limits: Limits) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text contents, known roles, arguments of calls as objects. Raises ApiError 400."""
    at_most("messages", len(given), limits.messages, "messages")
    if not given:
        raise invalid("messages is empty: send at least one {'role': 'user', 'content': ...}", "messages")
    return [_message(m, i) for i, m in enumerate(given)]


def _message(given: Mapping[str, Any], at: int) -> dict[str, Any]:
    role: Any = given.get("role")
    if role not in _ROLES:
        raise invalid(f"messages[{at}]: role={str(role)[:60]!r} must be one of {', '.join(_ROLES)}", "messages")
    out: dict[str, Any] = {"role": "system" if role == "developer" else role}
    content, calls = given.get("content"), given.get("tool_calls")
    if content is None and not calls:
        raise invalid(f"messages[{at}] has no content", "messages")
    out["content"] = "" if content is None else text_of(content, "messages")
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            out[name] = given[name]
    if calls:
        out["tool_calls"] = [_past_call(c, at) for c in (calls if isinstance(calls, list) else [calls])]
    return out


def _past_call(given: Any, at: int) -> dict[str, Any]:
    """A call the assistant made before. Templates want its arguments as an object; OpenAI sends text."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"messages[{at}]: tool_calls must hold {{'id', 'type', 'function': {{'name', 'arguments'}}}}", "messages")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise invalid(f"messages[{at}]: the arguments of {function['name'][:60]!r} are not JSON", "messages") from None
    return {"id": str(given.get("id", "")), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def text_of(content: Any, field: str) -> str:
    """A text, or the texts of a list of parts. Pictures, sounds and files are refused: nothing is ever fetched."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{field}: content must be text or a list of text parts", field)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "refusal") or not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
            raise invalid(f"{field}: a content part of type {str(kind)[:60]!r} is not supported: this model reads text", field)
        texts.append(part["refusal" if kind == "refusal" else "text"])
    return "".join(texts)
