"""The limits that clients are held to, and the checks that name the field, its size and the limit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headstart.server.errors import ApiError, invalid


@dataclass(frozen=True)
class Limits:
    """What one client may ask for. Lengths in characters unless a unit is named."""

    body_bytes: int = 8 << 20
    body_seconds: float = 30.0  # for a whole body to arrive
    n: int = 16  # completions per prompt, best_of included
    prompts: int = 128  # prompts of one /v1/completions call
    messages: int = 2048
    stops: int = 32
    stop_length: int = 1024
    bad_words: int = 256
    logit_bias: int = 4096
    tools: int = 128
    schema_bytes: int = 64 << 10
    schema_depth: int = 32
    grammar_seconds: float = 10.0  # for one to compile
    template_bytes: int = 64 << 10  # chat_template_kwargs


def at_most(name: str, value: int, limit: int, unit: str) -> None:
    """Raises ApiError 400 naming the field, its size and the limit."""
    if value > limit:
        raise invalid(f"{name} has {value} {unit}, the limit is {limit}: send fewer", name)


def check_schema(name: str, schema: Any, limits: Limits) -> None:
    """Size and depth of what a grammar is compiled from."""
    at_most(name, len(json.dumps(schema)), limits.schema_bytes, "bytes")
    at_most(name, depth(schema), limits.schema_depth, "levels")


def depth(value: Any) -> int:
    """How deep objects and arrays are nested, without recursion."""
    deepest, level = 0, [value]
    while level:
        inner = [x for x in level if isinstance(x, (dict, list))]
        deepest += bool(inner)
        level = [y for x in inner for y in (x.values() if isinstance(x, dict) else x)]
    return deepest


def check_lengths(prompt: int, wanted: int | None, context: int, truncated: bool) -> None:
    """Prompt and answer against the context. Raises ApiError 400 with all the numbers."""
    if truncated:
        return
    if prompt >= context:
        raise too_long(f"the prompt has {prompt} tokens and the context is {context}, of which the answer needs at least one")
    if wanted is not None and prompt + wanted > context:
        raise too_long(
            f"the prompt has {prompt} tokens and max_tokens={wanted} asks for more, together {prompt + wanted}; the context is {context}"
        )


def too_long(message: str) -> ApiError:
    """400 with OpenAI's code for it."""
    return invalid(f"{message}: shorten the prompt or ask for less", "messages", "context_length_exceeded")
