"""What is sent back: bodies and stream chunks in OpenAI's shapes, from the engine's cumulative outputs.

A stream is made of differences: each choice remembers what it has sent, and the pieces joined are the text of the whole answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.core.outputs import CompletionOutput, Logprob, RequestOutput
from headstart.server.figures import extras, usage
from headstart.server.prompts import token_bytes
from headstart.server.tools import ToolCall, ToolReader

Json = dict[str, Any]


@dataclass
class Form:
    """How one HTTP request wants its answer."""

    model: str
    fingerprint: str
    tokenizer: Any
    chat: bool
    n: int = 1
    top_logprobs: int | None = None  # None: no log probabilities
    tools: Sequence[str] = ()
    echo: str | None = None  # the prompt's text, when it is to be repeated
    ids: bool = False
    origins: bool = False
    level: str = "summary"  # of the speculative metrics
    usage: bool = False
    continuous: bool = False
    max_calls: int | None = None
    id: str = ""  # the client's own name for the request; one is made where there is none
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + (self.id or uuid.uuid4().hex)

    def head(self, kind: str) -> Json:
        """The fields that every body and chunk has."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "system_fingerprint": self.fingerprint}


# Whole answers


def whole(form: Form, outputs: Sequence[RequestOutput]) -> Json:
    """The body of an answer that is not streamed."""
    choices = []
    for i, output in enumerate(outputs):
        for completion in output.outputs:
            choices.append(_choice(form, i * form.n + completion.index, output, completion))
    body = form.head("chat.completion" if form.chat else "text_completion") | {"choices": choices, "usage": usage(outputs)}
    if outputs[0].prompt_logprobs is not None and not form.echo:
        body["prompt_logprobs"] = [_plain(entry) for entry in outputs[0].prompt_logprobs]
    return body | extras(outputs, form.level)


def _choice(form: Form, index: int, output: RequestOutput, completion: CompletionOutput) -> Json:
    choice: Json = {"index": index}
    finish = completion.finish_reason
    if form.chat:
        message: Json = {"role": "assistant", "content": completion.text, "refusal": None}
        if form.tools:
            content, calls = ToolReader(form.tools).feed(completion.text, True)
            calls = calls[: form.max_calls]
            if calls:
                message |= {"content": content or None, "tool_calls": [_call(c) for c in calls]}
                finish = "tool_calls" if finish == "stop" else finish
        choice |= {"message": message, "logprobs": _chat_logprobs(form, completion, 0)}
    else:
        text = completion.text if form.echo is None else form.echo + completion.text
        choice |= {"text": text, "logprobs": _text_logprobs(form, output, completion, 0, 0)}
    choice |= {"finish_reason": finish, "stop_reason": completion.stop_reason}
    if form.ids:
        choice |= {"token_ids": completion.token_ids, "prompt_token_ids": output.prompt_token_ids}
    if form.origins:
        pairs = zip(completion.token_texts, completion.origins, strict=True)
        choice["token_origins"] = [{"text": text, "origin": origin} for text, origin in pairs]
    return choice


def _call(call: ToolCall, index: int | None = None) -> Json:
    out: Json = {"id": "call_" + uuid.uuid4().hex[:24], "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return out if index is None else {"index": index, **out}


# Log probabilities


def _entry(tokenizer: Any, token: int, scored: Logprob) -> Json:
    text = scored.decoded_token or ""
    return {"token": text, "logprob": max(scored.logprob, -9999.0), "bytes": token_bytes(tokenizer, token, text)}


def _chat_logprobs(form: Form, completion: CompletionOutput, start: int) -> Json | None:
    if form.top_logprobs is None or completion.logprobs is None:
        return None
    content = []
    for token, scores in zip(completion.token_ids[start:], completion.logprobs[start:], strict=True):
        entries = {t: _entry(form.tokenizer, t, s) for t, s in scores.items()}
        best = sorted(scores, key=lambda t: scores[t].rank or 0)[: form.top_logprobs]
        content.append({**entries[token], "top_logprobs": [entries[t] for t in best]})
    return {"content": content, "refusal": None}


def _text_logprobs(form: Form, output: RequestOutput, completion: CompletionOutput, start: int, offset: int) -> Json | None:
    """`text_offset` counts characters from the beginning of the answer, or of the echoed prompt."""
    if form.top_logprobs is None or completion.logprobs is None:
        return None
    out: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if form.echo is not None and start == 0 and output.prompt_logprobs is not None:
        for token, known in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
            text = known[token].decoded_token or "" if known else form.tokenizer.decode([token])
            _append(form, out, token, text, known, offset)
            offset += len(text)
        offset = len(form.echo)
    elif form.echo is not None:
        offset += len(form.echo)
    offset += sum(len(t) for t in completion.token_texts[:start])
    rows = zip(completion.token_ids[start:], completion.logprobs[start:], completion.token_texts[start:], strict=True)
    for token, scores, text in rows:
        _append(form, out, token, scores[token].decoded_token or "", scores, offset)
        offset += len(text)
    return out


def _append(form: Form, out: Json, token: int, text: str, scores: Mapping[int, Logprob] | None, offset: int) -> None:
    out["tokens"].append(text)
    out["text_offset"].append(offset)
    out["token_logprobs"].append(max(scores[token].logprob, -9999.0) if scores else None)
    best = sorted(scores, key=lambda t: scores[t].rank or 0)[: form.top_logprobs] if scores else []
    out["top_logprobs"].append({scores[t].decoded_token or str(t): max(scores[t].logprob, -9999.0) for t in best} if scores else None)


def _plain(entry: Mapping[int, Logprob] | None) -> Json | None:
    if entry is None:
        return None
    return {str(t): {"logprob": max(s.logprob, -9999.0), "rank": s.rank, "decoded_token": s.decoded_token} for t, s in entry.items()}


# Streams


@dataclass
class _Sent:
    """What one choice has sent. Invariant: the content sent so far is a beginning of its whole content."""

    tools: ToolReader | None
    chars: int = 0
    tokens: int = 0
    calls: int = 0
    segment_token: int = 0  # of the origins: tokens whose text is out, and the characters before them
    segment_chars: int = 0
    done: bool = False


class Stream:
    """Turns cumulative outputs into chunks; one object per HTTP request."""

    def __init__(self, form: Form, prompts: int) -> None:
        self.form = form
        self.kind = "chat.completion.chunk" if form.chat else "text_completion"
        self.sent = [_Sent(ToolReader(form.tools) if form.tools else None) for _ in range(prompts * form.n)]
        self.outputs: list[RequestOutput | None] = [None] * prompts

    def begin(self) -> list[Json]:
        """The chunks before any token: the role, for a chat; the echoed prompt is part of the first text."""
        if not self.form.chat:
            return []
        return [
            self._chunk([{"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}])
            for i in range(len(self.sent))
        ]

    def update(self, prompt: int, output: RequestOutput) -> list[Json]:
        """The chunks of what is new in the output of one prompt."""
        self.outputs[prompt] = output
        chunks = []
        for completion in output.outputs:
            index = prompt * self.form.n + completion.index
            choice = self._delta(index, output, completion)
            if choice is not None:
                chunks.append(self._chunk([choice]))
        known = [o for o in self.outputs if o is not None]
        if chunks and not self.form.usage and len(known) == len(self.outputs) and all(o.finished for o in known):
            chunks[-1] |= extras(known, self.form.level)  # where no usage chunk follows, the last one carries them
        return chunks

    def end(self) -> list[Json]:
        """The chunk after all: usage, if it was asked for, and the statistics."""
        outputs = [o for o in self.outputs if o is not None]
        more = extras(outputs, self.form.level) if len(outputs) == len(self.outputs) else {}
        if self.form.usage:
            return [self._chunk([]) | {"usage": usage(outputs)} | more]
        return []

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self.form.head(self.kind) | {"choices": choices}
        if self.form.usage:
            known = [o for o in self.outputs if o is not None]
            chunk["usage"] = usage(known) if self.form.continuous and known else None
        return chunk

    def _delta(self, index: int, output: RequestOutput, completion: CompletionOutput) -> Json | None:
        sent, form = self.sent[index], self.form
        ended = completion.finish_reason is not None
        if sent.done:
            return None
        text, new = completion.text, completion.text[sent.chars :]
        calls: list[ToolCall] = []
        if sent.tools is not None:
            new, calls = sent.tools.feed(text, ended)
            calls = calls[: None if form.max_calls is None else max(form.max_calls - sent.calls, 0)]
        fresh = len(completion.token_ids) > sent.tokens
        if not (new or calls or ended or (fresh and (form.top_logprobs is not None or form.ids or form.continuous))):
            return None
        finish = completion.finish_reason
        choice: Json = {"index": index}
        if form.chat:
            delta: Json = {"content": new} if new or not calls else {}
            if calls:
                delta["tool_calls"] = [_call(c, sent.calls + i) for i, c in enumerate(calls)]
                sent.calls += len(calls)
            if finish == "stop" and sent.calls:
                finish = "tool_calls"
            choice |= {"delta": delta, "logprobs": _chat_logprobs(form, completion, sent.tokens)}
        else:
            echo = form.echo if form.echo is not None and sent.tokens == 0 else ""
            choice |= {"text": echo + new, "logprobs": _text_logprobs(form, output, completion, sent.tokens, 0)}
        choice |= {"finish_reason": finish}
        if ended:
            choice["stop_reason"] = completion.stop_reason
        if form.ids:
            choice["token_ids"] = completion.token_ids[sent.tokens :]
        if form.origins:
            choice["token_origins"] = self._segments(sent, completion)
        sent.chars, sent.tokens, sent.done = len(text), len(completion.token_ids), ended
        return choice

    @staticmethod
    def _segments(sent: _Sent, completion: CompletionOutput) -> list[Json]:
        """The new text cut at token borders, each piece with the origin of its token."""
        out: list[Json] = []
        at = sent.segment_chars
        known = sent.chars
        for i in range(sent.segment_token, len(completion.token_texts)):
            piece = completion.token_texts[i]
            end = at + len(piece)
            if end > known:
                out.append({"text": piece[max(known - at, 0) :], "origin": completion.origins[i]})
            at = end
        # The last token's text may still grow: what is held back is cut from the end.
        while sent.segment_token < len(completion.token_texts) - 64:
            sent.segment_chars += len(completion.token_texts[sent.segment_token])
            sent.segment_token += 1
        return out
