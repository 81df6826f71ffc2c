"""What clients may send: the shapes of requests, and how they become prompts and SamplingParams.

Fields that no shape names are ignored with a debug line, as clients expect. Fields that are named act, or are a 400.
Ranges are checked once, by SamplingParams; here are shapes, limits and translations.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from headstart.server.errors import ApiError, invalid, refused
from headstart.server.settings import Limits
from headstart.server.tools import forced_schema

log = logging.getLogger("headstart.server")

Body = TypeVar("Body", bound=BaseModel)

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

# Taken over as they stand, by requests of both kinds.
_SAMPLING = (
    *("n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("stop", "stop_token_ids", "bad_words", "ignore_eos", "min_tokens", "prompt_logprobs", "skip_special_tokens"),
    *("include_stop_str_in_output", "truncate_prompt_tokens", "logit_bias", "allowed_token_ids", "num_speculative_tokens", "verify"),
)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Asked(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_token_origins: bool | None = None
    num_speculative_tokens: int | None = None
    verify: str | None = None
    prediction: dict[str, Any] | None = None


class ChatRequest(Asked):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    web_search_options: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Asked):
    """`POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(BaseModel):
    """`POST /tokenize`: a prompt, or messages through the chat template."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())
    model: str | None = None
    tokens: list[int]


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every status that is not 200."""

    error: ErrorDetail


def parse(shape: type[Body], body: bytes) -> Body:
    """A request of this shape. Raises ApiError 400 that names the field."""
    try:
        asked = shape.model_validate_json(body)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False, include_input=False)[0]
        path = [str(p) for p in first["loc"]]
        words = first["msg"][:1].lower() + first["msg"][1:]
        if not path:
            raise invalid(f"the body is not a JSON object: {words}") from None
        raise invalid(f"{path[0]}: {words}", path[0]) from None
    if asked.model_extra and log.isEnabledFor(logging.DEBUG):
        log.debug("fields without meaning here are ignored: %s", ", ".join(sorted(asked.model_extra))[:500])
    return asked


# Limits


def at_most(name: str, value: int, limit: int, unit: str) -> None:
    """Raises ApiError 400 naming the field, its size and the limit."""
    if value > limit:
        raise invalid(f"{name} has {value} {unit}, the limit is {limit}: send fewer", name)


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


# From fields to SamplingParams


def sampling(asked: Asked, limits: Limits, **more: Any) -> SamplingParams:
    """The options of a request; `more` are those that the two kinds name differently. Raises ApiError 400."""
    check_limits(asked, limits)
    _no_effect(asked)
    given: dict[str, Any] = {name: getattr(asked, name, None) for name in _SAMPLING}
    given |= {"structured_outputs": _structured(asked, limits), "prediction": prediction_text(asked), **more}
    given = {name: value for name, value in given.items() if value is not None}
    supported = {f.name for f in dataclasses.fields(SamplingParams)}
    for name in given:
        if name not in supported:
            raise invalid(f"{name} is not supported by this version: leave it out", name)
    try:
        return SamplingParams(**given)
    except ConfigError as e:
        raise refused(str(e), supported) from None


def _no_effect(asked: Asked) -> None:
    """Fields that would change the output elsewhere and cannot here."""
    if asked.spaces_between_special_tokens is False:
        raise invalid("spaces_between_special_tokens=false is not available: leave it out or send true", "spaces_between_special_tokens")
    if asked.stream and asked.prompt_logprobs is not None:
        raise invalid("prompt_logprobs cannot be streamed: send stream=false", "prompt_logprobs")
    if asked.request_id is not None and not _REQUEST_ID.fullmatch(asked.request_id):
        raise invalid("request_id must be at most 128 letters, digits, '.', ':', '_' and '-'", "request_id")
    if asked.priority:
        raise invalid(f"priority={asked.priority} is not available: requests run in order of arrival", "priority")


def _structured(asked: Asked, limits: Limits) -> dict[str, Any] | None:
    """`structured_outputs` from whichever field asks for it; two that ask are a contradiction."""
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
    if len(found) > 1:
        raise invalid(f"{' and '.join(found)} both say what the output must look like: leave one of them out", list(found)[-1])
    for name, wanted in found.items():
        check_schema(name, wanted, limits)
        return wanted
    return None


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


def max_tokens_of(asked: ChatRequest) -> int | None:
    """`max_completion_tokens`, or its older name; None for as many as the context holds."""
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid(f"max_tokens={old} and max_completion_tokens={new} contradict each other: leave one out", "max_completion_tokens")
    return old if new is None else new


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
            params = dataclasses.replace(params, structured_outputs={"json": forced})
        except ConfigError as e:
            raise refused(str(e), SamplingParams.__dataclass_fields__) from None
    return params


def completion_sampling(asked: CompletionRequest, limits: Limits) -> SamplingParams:
    """The options of a completion request. Raises ApiError 400."""
    if asked.suffix:
        raise invalid("suffix is not supported: the model continues a text, it does not fill one in", "suffix")
    more = _given(max_tokens=asked.max_tokens, logprobs=asked.logprobs)
    if asked.echo and asked.logprobs is not None and asked.prompt_logprobs is None:
        more["prompt_logprobs"] = asked.logprobs
    if asked.stream and asked.best_of is not None and asked.best_of > (asked.n or 1):
        raise invalid(f"best_of={asked.best_of} cannot be streamed: which are the likeliest is known at the end only", "best_of")
    return sampling(asked, limits, **more)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# Tools


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


# Messages

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


def prompts_of(asked: CompletionRequest, limits: Limits) -> list[str | list[int]]:
    """The prompts of a completion request. Raises ApiError 400."""
    given: Any = asked.prompt
    many: Iterable[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    prompts = list(many)
    if not prompts:
        raise invalid("prompt is empty: send text or token ids", "prompt")
    at_most("prompt", len(prompts), limits.prompts, "prompts")
    return prompts


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
