"""From messages or text to token ids, through the model's own tokenizer and chat template. Runs on worker threads.

transformers renders templates in jinja's immutable sandbox; what clients may hand to a template are plain JSON values under names
that are not arguments of the renderer itself.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any

from headstart.core.errors import first_line
from headstart.server.errors import invalid
from headstart.server.limits import Limits, at_most, depth, too_long
from headstart.server.messages import messages_of
from headstart.server.shapes import ChatRequest, CompletionRequest
from headstart.server.tools import tool_names


class Prompter:
    """A tokenizer and its template. Holds no state of requests."""

    def __init__(self, tokenizer: Any, limits: Limits, context: int) -> None:
        self.tokenizer, self.limits, self.context = tokenizer, limits, context
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)  # characters of one token
        template = getattr(tokenizer, "chat_template", None)
        self.template = json.dumps(template) if isinstance(template, dict) else template or ""
        renderer = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = {*renderer, "self", "messages", "tools", "bos_token", "eos_token"} - {"kwargs"}

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids of a text, with the tokenizer's own beginning unless `special` is False."""
        return list(self.tokenizer(text, add_special_tokens=special is not False).input_ids)

    def prompt(self, text: str, special: bool | None, truncated: bool) -> list[int]:
        """`encode`, unless the text cannot fit whatever its tokens are: then ApiError 400, before any work is spent on it."""
        least = len(text) // self._longest
        if least >= self.context and not truncated:
            raise too_long(f"the prompt has {len(text)} characters, at least {least} tokens, and the context is {self.context}")
        return self.encode(text, special)

    def chat(self, asked: ChatRequest) -> tuple[str, list[int]]:
        """The text and ids of a conversation, up to where the answer begins. Raises ApiError 400."""
        messages = messages_of(asked.messages, self.limits)
        more: dict[str, Any] = dict(self._kwargs(asked))
        if tool_names(asked, self.limits):
            if "tools" not in self.template:
                raise invalid("tools: this model's chat template knows no tools", "tools")
            more["tools"] = asked.tools
        goes_on = bool(asked.continue_final_message)
        if goes_on and asked.add_generation_prompt:
            raise invalid("continue_final_message and add_generation_prompt contradict each other: leave one out", "continue_final_message")
        begins = not goes_on if asked.add_generation_prompt is None else asked.add_generation_prompt
        more |= {"add_generation_prompt": begins, "continue_final_message": goes_on}
        text = self.render(messages, more)
        return text, self.prompt(text, False, asked.truncate_prompt_tokens is not None)

    def render(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        """Messages through the template. Raises ApiError 400 when there is none, or it refuses them."""
        if not self.template:
            raise invalid("this model has no chat template: use /v1/completions", "messages")
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except Exception as e:  # templates raise whatever they like on messages they do not take
            raise invalid(f"messages: the chat template refused them: {first_line(e)[:300]}", "messages") from None

    def _kwargs(self, asked: ChatRequest) -> Mapping[str, Any]:
        given = dict(asked.chat_template_kwargs or {})
        at_most("chat_template_kwargs", len(json.dumps(given)), self.limits.template_bytes, "bytes")
        at_most("chat_template_kwargs", depth(given), self.limits.schema_depth, "levels")
        for name in given:
            if name in self._reserved or not name.isidentifier() or name.startswith("_"):
                raise invalid(f"chat_template_kwargs: {name[:60]!r} is not for clients to set", "chat_template_kwargs")
        for name in ("reasoning_effort", "verbosity"):
            value = getattr(asked, name)
            if value is not None:
                if name not in self.template:
                    raise invalid(f"{name} is not supported: this model's chat template does not know it", name)
                given[name] = value
        return given


def prompts_of(asked: CompletionRequest, limits: Limits) -> list[str | list[int]]:
    """The prompts of a completion request. Raises ApiError 400."""
    given: Any = asked.prompt
    many: Iterable[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    prompts = list(many)
    if not prompts:
        raise invalid("prompt is empty: send text or token ids", "prompt")
    at_most("prompt", len(prompts), limits.prompts, "prompts")
    return prompts


def token_bytes(tokenizer: Any, token: int, text: str) -> list[int]:
    """The bytes of one token; `text` is its decoded form, which shows a part of a character as U+FFFD."""
    if "�" not in text:
        return list(text.encode())
    raw = tokenizer.convert_ids_to_tokens(token)
    if isinstance(raw, str):
        if len(raw) == 6 and raw.startswith("<0x"):  # SentencePiece
            return [int(raw[3:5], 16)]
        table = _byte_alphabet()
        if all(c in table for c in raw):  # byte-level BPE
            return [table[c] for c in raw]
    return list(text.encode())


_TABLE: dict[str, int] = {}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the rest follow from U+0100 on, in order."""
    if not _TABLE:
        own = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [b for b in range(256) if b not in own]
        _TABLE.update({chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(rest)})
    return _TABLE
