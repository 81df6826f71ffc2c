"""From the fields of a request to SamplingParams. Ranges are checked once, there; here are limits, translations and contradictions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams, StructuredOutputsParams
from headstart.server.errors import invalid, refused
from headstart.server.limits import Limits, at_most, check_schema
from headstart.server.messages import text_of
from headstart.server.shapes import Asked, ChatRequest, CompletionRequest
from headstart.server.tools import forced_tool

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

# Taken over as they stand, by requests of both kinds.
_SAMPLING = (
    *("n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("stop", "stop_token_ids", "bad_words", "ignore_eos", "min_tokens", "prompt_logprobs", "skip_special_tokens"),
    *("include_stop_str_in_output", "truncate_prompt_tokens", "logit_bias", "allowed_token_ids", "num_speculative_tokens", "verify"),
    *("drafter", "trace_drafts"),
)


def chat_sampling(asked: ChatRequest, limits: Limits) -> SamplingParams:
    """The options of a chat request; a forced tool call becomes a grammar. Raises ApiError 400."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise invalid(f"top_logprobs={asked.top_logprobs} has no effect without logprobs=true: add it", "top_logprobs")
    if asked.top_logprobs is not None and asked.top_logprobs < 0:
        raise invalid(f"top_logprobs={asked.top_logprobs} must not be negative", "top_logprobs")
    for name in ("functions", "function_call", "audio", "web_search_options", "chat_template"):
        if getattr(asked, name) is not None:
            hint = {"functions": ": use tools", "function_call": ": use tool_choice", "chat_template": ": start the server with it"}
            raise invalid(f"{name} is not supported{hint.get(name, '')}", name)
    if asked.modalities is not None and asked.modalities != ["text"]:
        raise invalid(f"modalities={asked.modalities!r:.100} cannot be had: only ['text']", "modalities")
    if asked.echo:
        raise invalid("echo is not available for chats: it belongs to /v1/completions", "echo")
    tokens = max_tokens_of(asked)
    params = sampling(asked, limits, logprobs=(asked.top_logprobs or 0) if asked.logprobs else None, **_given(max_tokens=tokens))
    if tokens is None:
        params = dataclasses.replace(params, max_tokens=None)
    forced = forced_tool(asked, limits)
    if forced is not None:
        if params.structured_outputs is not None:
            raise invalid("tool_choice forces a call, and response_format or structured_outputs another text: leave one out", "tool_choice")
        try:
            params = dataclasses.replace(params, structured_outputs=StructuredOutputsParams(json=forced))
        except ConfigError as e:
            raise refused(str(e), SamplingParams.__dataclass_fields__) from None
    return params


def completion_sampling(asked: CompletionRequest, limits: Limits) -> SamplingParams:
    """The options of a completion request. Raises ApiError 400."""
    if asked.suffix:
        raise invalid("suffix is not supported: the model continues a text, it does not fill one in", "suffix")
    if asked.max_tokens == 0 and asked.min_tokens:
        raise invalid(f"min_tokens={asked.min_tokens} is above max_tokens=0: leave one of them out", "min_tokens")
    # Of nothing at all the engine makes one token, which is not shown: the pass that scores the prompt yields it anyway.
    more = _given(max_tokens=1 if asked.max_tokens == 0 else asked.max_tokens, logprobs=asked.logprobs)
    if asked.echo and asked.logprobs is not None and asked.prompt_logprobs is None:
        more["prompt_logprobs"] = asked.logprobs
    if asked.stream and asked.best_of is not None and asked.best_of > (asked.n or 1):
        raise invalid(f"best_of={asked.best_of} cannot be streamed: which are the likeliest is known at the end only", "best_of")
    return sampling(asked, limits, **more)


def max_tokens_of(asked: ChatRequest) -> int | None:
    """`max_completion_tokens`, or its older name; None for as many as the context holds."""
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid(f"max_tokens={old} and max_completion_tokens={new} contradict each other: leave one out", "max_completion_tokens")
    return old if new is None else new


def sampling(asked: Asked, limits: Limits, **more: Any) -> SamplingParams:
    """The options of a request; `more` are those that the two kinds name differently. Raises ApiError 400."""
    check_limits(asked, limits)
    _no_effect(asked)
    given: dict[str, Any] = {name: getattr(asked, name, None) for name in _SAMPLING}
    given |= {"structured_outputs": _structured(asked, limits), "prediction": prediction_text(asked), **more}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return SamplingParams(**given)
    except ConfigError as e:
        raise refused(str(e), SamplingParams.__dataclass_fields__) from None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def check_limits(asked: Asked, limits: Limits) -> None:
    """What a count or a length may not exceed, whatever else the request says."""
    for name in ("n", "best_of"):
        value = getattr(asked, name, None)
        if value is not None and value > limits.n:
            raise invalid(f"{name}={value} is above the server's limit of {limits.n}: send several requests", name)
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    at_most("stop", len(stops), limits.stops, "strings")
    at_most("stop", max((len(s) for s in stops), default=0), limits.stop_length, "characters in one string")
    at_most("bad_words", len(asked.bad_words or ()), limits.bad_words, "words")
    at_most("bad_words", max((len(s) for s in asked.bad_words or ()), default=0), limits.stop_length, "characters in one word")
    at_most("logit_bias", len(asked.logit_bias or ()), limits.logit_bias, "entries")


def _no_effect(asked: Asked) -> None:
    """Fields that would change the output elsewhere and cannot here."""
    if asked.spaces_between_special_tokens is False:
        raise invalid("spaces_between_special_tokens=false is not available: leave it out or send true", "spaces_between_special_tokens")
    if asked.request_id is not None and not _REQUEST_ID.fullmatch(asked.request_id):
        raise invalid("request_id must be at most 128 letters, digits, '.', ':', '_' and '-'", "request_id")
    if asked.priority:
        raise invalid(f"priority={asked.priority} is not available: requests run in order of arrival", "priority")


def _structured(asked: Asked, limits: Limits) -> StructuredOutputsParams | None:
    """What the output must look like, from the one field that says it; two that do are a contradiction."""
    found = _grammars(asked)
    if len(found) > 1:
        raise invalid(f"{' and '.join(found)} both say what the output must look like: leave one of them out", list(found)[-1])
    for name, wanted in found.items():
        check_schema(name, wanted, limits)
        try:
            return StructuredOutputsParams(**wanted)
        except ConfigError as e:
            raise invalid(f"{name}: {e}", name) from None
    return None


def _grammars(asked: Asked) -> dict[str, dict[str, Any]]:
    """Field -> what it asks for, as the keywords of StructuredOutputsParams."""
    found: dict[str, dict[str, Any]] = {}
    if asked.structured_outputs is not None:
        found["structured_outputs"] = asked.structured_outputs
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(asked, "guided_" + kind)
        if value is not None:
            found["guided_" + kind] = {kind: value}
    if asked.response_format is not None:
        wanted = _response_format(asked.response_format)
        if wanted is not None:
            found["response_format"] = wanted
    return found


def grammar_field(asked: Asked) -> str:
    """The field that a request's grammar comes from."""
    return next(iter(_grammars(asked)), "tools")


def _response_format(given: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        wrapped = given.get("json_schema")
        schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
        if not isinstance(schema, (dict, bool)):
            raise invalid("response_format: json_schema needs {'name': ..., 'schema': {...}}", "response_format")
        return {"json": schema}
    raise invalid(f"response_format: type={str(kind)[:60]!r} must be text, json_object or json_schema", "response_format")


def prediction_text(asked: Asked) -> str | None:
    """The text of `prediction`, joined from its parts."""
    given = asked.prediction
    if given is None:
        return None
    if given.get("type") != "content" or "content" not in given:
        raise invalid("prediction must be {'type': 'content', 'content': text or a list of text parts}", "prediction")
    return text_of(given["content"], "prediction")
