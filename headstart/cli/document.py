"""`--json`: one document. The schema is stable; `version` changes when a field changes its meaning or goes.

{version, headstart, model, speculative_config, sampling, outputs: [{prompt, prompt_token_ids, error, completions: [{index,
text, token_ids, origins, drafters, finish_reason, stop_reason}], metrics}]}; with --compare also `compare`, with --logprobs also
`cumulative_logprob` and `logprobs` (for each token a list, itself first, then the likeliest) in each completion.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headstart import __version__
from headstart.cli.show import per_pass, speed
from headstart.core.outputs import CompletionOutput, RequestOutput
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.api import LLM

VERSION = 1


def document(llm: LLM, texts: list[str], outputs: list[RequestOutput], params: SamplingParams) -> dict[str, Any]:
    """The document of a run; `texts` are the prompts as the user wrote them."""
    spec = asdict(llm.config.speculative)
    return {
        "version": VERSION,
        "headstart": __version__,
        "model": llm.config.model,
        "speculative_config": {k: v for k, v in spec.items() if v is not None} if llm.speculation else None,
        "sampling": {k: v for k, v in asdict(params).items() if v not in (None, (), {})},
        "outputs": [one(text, output) for text, output in zip(texts, outputs, strict=True)],
    }


def one(text: str, output: RequestOutput) -> dict[str, Any]:
    """One prompt with its completions and metrics. Times are seconds."""
    m = output.metrics
    prompt_speed, generation_speed = speed([output])
    since = lambda t: None if t is None else t - m.arrival_time  # noqa: E731
    return {
        "prompt": text,
        "prompt_token_ids": list(output.prompt_token_ids),
        "error": output.error,
        "completions": [
            {
                "index": c.index,
                "text": c.text,
                "token_ids": list(c.token_ids),
                "origins": list(c.origins),
                "drafters": list(c.drafters),
                "finish_reason": c.finish_reason,
                "stop_reason": c.stop_reason,
                **_scores(c),
            }
            for c in output.outputs
        ],
        "metrics": {
            "prompt_tokens": len(output.prompt_token_ids),
            "cached_tokens": output.num_cached_tokens,
            "completion_tokens": sum(len(c.token_ids) for c in output.outputs),
            "time_to_first_token": since(m.first_token_time),
            "total_time": since(m.finished_time),
            "prompt_tokens_per_second": prompt_speed,
            "generation_tokens_per_second": generation_speed,
            "passes": m.num_passes,
            "tokens_per_pass": per_pass([output]),
            "preemptions": m.num_preemptions,
            "accepted_prediction_tokens": m.accepted_prediction_tokens,
            "rejected_prediction_tokens": m.rejected_prediction_tokens,
            "seed": m.seed,
            "speculative_decoding": m.speculative_decoding.as_dict(),
        },
    }


def _scores(c: CompletionOutput) -> dict[str, Any]:
    if c.logprobs is None:
        return {}
    entries = [[{"token_id": t, **asdict(scored)} for t, scored in entry.items()] for entry in c.logprobs]
    return {"cumulative_logprob": c.cumulative_logprob, "logprobs": entries}


def write(value: dict[str, Any]) -> None:
    """Print the document on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
