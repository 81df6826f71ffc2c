"""The figures of a request: OpenAI's `usage`, vLLM's `metrics` and llama.cpp's `timings`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headstart.core.outputs import RequestOutput, SpeculativeStats

Json = dict[str, Any]


def usage(outputs: Sequence[RequestOutput]) -> Json:
    """Token counts. `completion_tokens` are tokens that were emitted: refused drafts are never charged."""
    prompt = sum(len(o.prompt_token_ids) for o in outputs)
    made = sum(len(c.token_ids) for o in outputs for c in o.outputs)
    stats = [o.metrics.speculative_decoding for o in outputs]
    drafted = sum(s.num_draft_tokens for s in stats)
    accepted = sum(s.num_accepted_draft_tokens for s in stats)
    details: Json = {"reasoning_tokens": 0, "audio_tokens": 0}
    for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
        counts = [n for o in outputs if (n := getattr(o.metrics, name)) is not None]
        details[name] = sum(counts) if counts else None  # None: no prediction was sent
    # Official shapes are all that some clients keep, so the acceptance stands here too.
    details |= {"draft_tokens": drafted, "accepted_draft_tokens": accepted}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(o.num_cached_tokens for o in outputs)},
        "completion_tokens_details": details,
    }


def extras(outputs: Sequence[RequestOutput], level: str) -> Json:
    """vLLM's `metrics` at a level of METRICS_LEVELS and llama.cpp's `timings`, of a request with one prompt and one completion."""
    if len(outputs) > 1 or len(outputs[0].outputs) > 1:
        return {}
    body: Json = {"timings": timings(outputs[0])}
    if level != "none":
        body["metrics"] = request_metrics(outputs[0], level == "detailed")
    return body


def request_metrics(output: RequestOutput, detailed: bool) -> Json:
    """vLLM's per-request object; times in milliseconds."""
    m = output.metrics
    made = sum(len(c.token_ids) for c in output.outputs)
    scheduled, first = m.first_scheduled_time, m.first_token_time
    end = m.finished_time or time.monotonic()
    decode = None if first is None else end - first
    body: Json = {
        "time_to_first_token_ms": None if first is None else (first - m.arrival_time) * 1e3,
        "queue_time_ms": None if scheduled is None else (scheduled - m.arrival_time) * 1e3,
        "generation_time_ms": None if decode is None else decode * 1e3,
        "mean_itl_ms": None if decode is None or made < 2 else decode / (made - 1) * 1e3,
        "tokens_per_second": None if scheduled is None else made / max(end - scheduled, 1e-9),
        "num_passes": m.num_passes,
        "seed": m.seed,
    }
    if m.speculative_decoding.num_spec_tokens:
        body["speculative_decoding"] = _speculative(m.speculative_decoding, detailed)
    return body


def _speculative(stats: SpeculativeStats, detailed: bool) -> Json:
    body = stats.as_dict()
    if not detailed:
        for name in ("per_step_accepted", "per_step_drafted"):
            del body[name]
    return body


def timings(output: RequestOutput) -> Json:
    """llama.cpp's object; `draft_n` is there when drafts were made."""
    m = output.metrics
    made = sum(len(c.token_ids) for c in output.outputs)
    read = len(output.prompt_token_ids) - output.num_cached_tokens
    start = m.first_scheduled_time or m.arrival_time
    first = m.first_token_time or start
    prompt_ms = max(first - start, 1e-9) * 1e3
    predicted_ms = max((m.finished_time or time.monotonic()) - first, 1e-9) * 1e3
    body: Json = {
        "cache_n": output.num_cached_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(read, 1),
        "prompt_per_second": read / prompt_ms * 1e3,
        "predicted_n": made,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(made, 1),
        "predicted_per_second": max(made - 1, 0) / predicted_ms * 1e3,
    }
    stats = m.speculative_decoding
    if stats.num_draft_tokens:
        body |= {"draft_n": stats.num_draft_tokens, "draft_n_accepted": stats.num_accepted_draft_tokens}
    return body
