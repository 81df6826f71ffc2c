"""What is settled about a request before it is queued: whether this engine can serve it as it is, and its words as token ids."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from headstart.core.errors import ConfigError, nearest
from headstart.core.params import SamplingParams
from headstart.runtime.tokenizer import continuation


def truncated(ids: list[int], params: SamplingParams, limit: int) -> list[int]:
    """The last `truncate_prompt_tokens` of the prompt; -1 leaves room for max_tokens, or for one token."""
    keep = params.truncate_prompt_tokens
    if keep == -1:
        keep = max(1, limit - (params.max_tokens or 1))
    return ids if keep is None else ids[-keep:]


def check_options(params: SamplingParams, vocab: int, max_logprobs: int, tokenizer: Any) -> None:
    """Raises ConfigError for options that this target cannot serve."""
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        unknown = next((t for t in getattr(params, name) or () if t >= vocab), None)
        if unknown is not None:
            raise ConfigError(f"{name}: token id {unknown} is not an id of the vocabulary (0..{vocab - 1})")
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name)
        if wanted is not None and max_logprobs >= 0 and not 0 <= wanted <= max_logprobs:
            raise ConfigError(f"{name}={wanted} is above max_logprobs={max_logprobs}: load the model with a larger max_logprobs")
    if params.stop and tokenizer is None:
        raise ConfigError("stop strings need a tokenizer: use stop_token_ids")


def check_drafting(params: SamplingParams, names: Seq[str], drafts: int) -> None:
    """Raises ConfigError for wishes that these drafters, of up to `drafts` tokens a step, cannot fulfil."""
    if params.drafter is not None and params.drafter not in names:
        raise ConfigError(f"drafter={params.drafter!r} is not one of those configured: {nearest(params.drafter, names)}")
    if params.drafter == "prediction" and params.prediction is None:
        raise ConfigError("drafter='prediction' needs a prediction: give the answer you expect")
    if drafts == 0 and params.num_speculative_tokens and params.prediction is None:
        raise ConfigError(
            f"num_speculative_tokens={params.num_speculative_tokens} but nothing drafts: "
            "give LLM a speculative_config, such as {'method': 'ngram'}"
        )


def bad_words(params: SamplingParams, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Token ids of every bad word, as it stands at the beginning of a text and after a space (as in vLLM). Raises ConfigError."""
    if not params.bad_words:
        return ()
    if tokenizer is None:
        raise ConfigError("bad_words need a tokenizer: ban single ids with logit_bias={id: -100}")
    out: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        for text in (word, " " + word.lstrip()):
            ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
            if ids:
                out[ids] = None
    return tuple(out)


def prediction(params: SamplingParams, vocab: int, limit: int, tokenizer: Any) -> tuple[int, ...]:
    """The ids of a request's prediction. Raises ConfigError when they cannot be an answer of this target."""
    given = params.prediction
    if isinstance(given, str) and tokenizer is None:
        raise ConfigError("a prediction as text needs a tokenizer: give token ids")
    ids = tuple(continuation(tokenizer, given) if isinstance(given, str) else given or ())
    if len(ids) > limit:
        raise ConfigError(f"the prediction has {len(ids)} tokens, the context {limit}: shorten it to what the answer may be")
    bad = next((t for t in ids if t >= vocab), None)
    if bad is not None:
        raise ConfigError(f"prediction token id {bad} is not an id of the vocabulary (0..{vocab - 1})")
    return ids
