"""From options to a loaded model and running requests: what `generate`, `chat` and `demo` have in common."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headstart.cli.interrupt import Interruptible
from headstart.cli.options import ModelOptions
from headstart.cli.show import StreamPrinter, note, terminal, unsaid
from headstart.core.errors import ConfigError
from headstart.core.outputs import RequestError, RequestOutput
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.api import LLM
    from headstart.core.speculation import SpeculativeConfig

Messages = list[dict[str, str]]


def open_llm(model: ModelOptions, speculation: dict[str, Any] | SpeculativeConfig | None, quiet: bool) -> LLM:
    """Load what the options name; start-up lines go to stderr. Raises ConfigError, ModelError."""
    if not model.model:
        raise ConfigError("there is no model: add --model M (a directory, a GGUF file or a hub id such as org/name)")
    # The libraries below report progress and advice of their own: what the user should know is in llm.notes.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not terminal(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not quiet and terminal(sys.stderr):
        note(f"loading {model.model} …")
    from headstart.api import LLM

    # seed=None: an unseeded request draws a fresh seed, which its metrics report
    llm = LLM(model.model, speculative_config=speculation, seed=None, **model.arguments())
    if not quiet:
        for line in unsaid(llm.notes):
            note(line)
    return llm


def drafts(llm: LLM, params: SamplingParams) -> bool:
    """Whether anything drafts for a request."""
    return llm.speculation or params.prediction is not None


def with_seed(params: SamplingParams) -> SamplingParams:
    """The same, with a seed: two runs that are to be compared must draw the same numbers."""
    import secrets

    return params if params.seed is not None else replace(params, seed=secrets.randbits(31))


def as_messages(prompt: str, system: str | None) -> Messages:
    """One user turn, after a system prompt if there is one."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": prompt}]


def uses_chat(llm: LLM, asked: bool | None, system: str | None) -> bool:
    """Whether prompts go through the chat template: as asked, by default when there is one. Raises ConfigError."""
    has = bool(getattr(llm.get_tokenizer(), "chat_template", None))
    if asked and not has:
        raise ConfigError("this model has no chat template: leave --chat out, or write --raw to complete text")
    chat = has if asked is None else asked
    if system and not chat:
        raise ConfigError("--system has no effect without a chat template: put the text into the prompt")
    return chat


def start(llm: LLM, prompt: str | Messages, params: SamplingParams) -> Iterator[RequestOutput]:
    """Stream a text to complete or a conversation to answer."""
    return llm.stream(prompt, params) if isinstance(prompt, str) else llm.stream_chat(prompt, params)


def stream(llm: LLM, prompt: str | Messages, params: SamplingParams, printer: StreamPrinter | None) -> tuple[RequestOutput | None, bool]:
    """Run one request, printing as it grows. Returns its last output and whether Ctrl-C ended it.

    Raises RequestError when the request failed on its own.
    """
    last: RequestOutput | None = None
    with Interruptible() as interrupt, contextlib.closing(start(llm, prompt, params)) as outputs:  # type: ignore[type-var]
        for last in outputs:
            if printer is not None:
                printer.update(last.outputs[0])
            if interrupt.asked:
                break
    if last is not None and last.error:
        if printer is not None and printer.written:
            printer.end()
        raise RequestError(last.error)
    return last, interrupt.asked
