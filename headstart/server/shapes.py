"""What clients may send, and the shape of errors: the models that bodies are read into and that the OpenAPI document shows.

Fields that no shape names are ignored with a debug line, as clients expect. Fields that are named act, or are a 400.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from headstart.server.errors import invalid

log = logging.getLogger("headstart.server")

Body = TypeVar("Body", bound=BaseModel)


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
    trace_drafts: bool | None = None
    num_speculative_tokens: int | None = None
    verify: str | None = None
    drafter: str | None = None
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
