"""What is sent back: bodies and stream chunks in OpenAI's shapes, from the engine's cumulative outputs.

A stream is made of differences: each choice remembers what it has sent, and the pieces joined are the text of the whole answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    echo: Sequence[str] | None = None  # the text of each prompt, when they are to be repeated
    silent: bool = False  # max_tokens=0: the prompt is all that is asked about
    prompt_logprobs: bool = False
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
    outputs = [_shown(form, o) for o in outputs]
    choices = [
        _choice(form, prompt * form.n + completion.index, output, completion)
        for prompt, output in enumerate(outputs)
        for completion in output.outputs
    ]
    body = form.head("chat.completion" if form.chat else "text_completion") | {"choices": choices, "usage": usage(outputs)}
    if form.chat and form.prompt_logprobs:
        body["prompt_logprobs"] = _prompt_logprobs(outputs[0])
    return body | extras(outputs, form.level)


def _shown(form: Form, output: RequestOutput) -> RequestOutput:
    """The output; of a silent form without the one token that the engine makes at least."""
    if not form.silent:
        return output
    ended = "length" if output.finished else None
    none = [CompletionOutput(c.index, "", [], logprobs=None if c.logprobs is None else [], finish_reason=ended) for c in output.outputs]
    return replace(output, outputs=none)


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
        echo = _echo(form, index)
        choice |= {"text": (echo or "") + completion.text, "logprobs": _text_logprobs(form, output, completion, 0, echo)}
        if form.prompt_logprobs:
            choice["prompt_logprobs"] = _prompt_logprobs(output)
    choice |= {"finish_reason": finish, "stop_reason": completion.stop_reason}
    if form.ids:
        choice |= {"token_ids": completion.token_ids, "prompt_token_ids": output.prompt_token_ids}
    if form.origins:
        choice["token_origins"] = [_origin(completion, i, text) for i, text in enumerate(completion.token_texts)]
    return choice


def _echo(form: Form, index: int) -> str | None:
    """The text to repeat in front of a choice; None where none is."""
    return None if form.echo is None else form.echo[index // form.n]


def _call(call: ToolCall, index: int | None = None) -> Json:
    out: Json = {"id": "call_" + uuid.uuid4().hex[:24], "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return out if index is None else {"index": index, **out}


def _origin_of(completion: CompletionOutput, at: int) -> str:
    drafter = completion.drafters[at]
    return completion.origins[at] if drafter is None else f"draft:{drafter}"


def _origin(completion: CompletionOutput, at: int, text: str) -> Json:
    """Where one token came from and, where that was traced, how it was judged."""
    entry: Json = {"text": text, "origin": _origin_of(completion, at)}
    if completion.traces is not None:
        judged = completion.traces[at]
        rejected = [{"text": d.text, "p": d.p, "q": d.q} for d in judged.rejected]
        entry |= {"p": judged.p, "q": judged.q, "rejected": rejected}
    return entry


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


def _text_logprobs(form: Form, output: RequestOutput, completion: CompletionOutput, start: int, echo: str | None) -> Json | None:
    """`text_offset` counts characters from the beginning of the answer, or of the echoed prompt."""
    if form.top_logprobs is None or completion.logprobs is None:
        return None
    out: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    offset = 0
    if echo is not None and start == 0 and output.prompt_logprobs is not None:
        for token, known in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
            text = known[token].decoded_token or "" if known else form.tokenizer.decode([token])
            _append(form, out, token, text, known, offset)
            offset += len(text)
    offset = len(echo or "") + sum(len(t) for t in completion.token_texts[:start])
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


def _prompt_logprobs(output: RequestOutput) -> list[Json | None] | None:
    """vLLM's form: an object by token id for each token of the prompt, None for the first."""
    scores = output.prompt_logprobs
    return None if scores is None else [None if entry is None else _by_id(entry) for entry in scores]


def _by_id(entry: Mapping[int, Logprob]) -> Json:
    return {str(t): {"logprob": max(s.logprob, -9999.0), "rank": s.rank, "decoded_token": s.decoded_token} for t, s in entry.items()}


# Streams


@dataclass
class _Sent:
    """What one choice has sent. Invariant: the content sent so far is a beginning of its whole content."""

    tools: ToolReader | None
    chars: int = 0
    tokens: int = 0
    calls: int = 0
    border: int = 0  # the last token that has shown text, and the characters before it
    border_chars: int = 0
    begun: bool = False
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
        scores = output.prompt_logprobs
        if scores and len(scores) > 1 and scores[-1] is None:
            return []  # one of several completions is ahead of the one whose prompt is scored, and begins with those scores
        self.outputs[prompt] = output = _shown(self.form, output)
        chunks = []
        for completion in output.outputs:
            index = prompt * self.form.n + completion.index
            choice = self._delta(index, output, completion)
            if choice is not None:
                chunks.append(self._chunk([choice]))
                if self.form.chat and "prompt_logprobs" in choice:  # beside the choices, as in a whole answer
                    chunks[-1]["prompt_logprobs"] = choice.pop("prompt_logprobs")
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
        if not (new or calls or ended or (fresh and (form.top_logprobs is not None or form.ids or form.origins or form.continuous))):
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
            echo = _echo(form, index)
            front = "" if echo is None or sent.begun else echo
            choice |= {"text": front + new, "logprobs": _text_logprobs(form, output, completion, sent.tokens, echo)}
        choice |= {"finish_reason": finish}
        if ended:
            choice["stop_reason"] = completion.stop_reason
        if form.prompt_logprobs and not sent.begun and (index == 0 or not form.chat):
            choice["prompt_logprobs"] = _prompt_logprobs(output)
        if form.ids:
            choice["token_ids"] = completion.token_ids[sent.tokens :]
        if form.origins:
            choice["token_origins"] = self._origins(sent, completion)
        sent.chars, sent.tokens, sent.begun, sent.done = len(text), len(completion.token_ids), True, ended
        return choice

    @staticmethod
    def _origins(sent: _Sent, completion: CompletionOutput) -> list[Json]:
        """An entry for every new token; text of an older one that had been held back follows in an entry without the rest."""
        out: list[Json] = []
        at = sent.border_chars
        for i in range(sent.border, len(completion.token_texts)):
            piece = completion.token_texts[i]
            new = piece[max(sent.chars - at, 0) :]
            if i >= sent.tokens:
                out.append(_origin(completion, i, new))
            elif new:
                out.append({"text": new, "origin": _origin_of(completion, i)})
            if piece:
                sent.border, sent.border_chars = i, at
            at += len(piece)
        return out
