"""Our configuration and requests in vLLM's words. Pure functions; `refuse` has said before what cannot be said.

Only what a user set is handed on, so that vLLM's own defaults hold for the rest; but a method and its bounds are always explicit,
since what vLLM would guess is not what headstart means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from headstart.core.config import EngineConfig
from headstart.core.errors import ConfigError
from headstart.core.methods import CHECKPOINT_METHODS
from headstart.core.params import SamplingParams, StructuredOutputsParams
from headstart.core.speculation import SpeculativeConfig

PROPOSER = "headstart.backends.vllm.proposer.LookupProposer"
OUR_KEY = "headstart"  # of vLLM's additional_config: what the proposer is made from

# Our name -> vLLM's, of what is handed on when the user set it.
_ENGINE = {
    "tokenizer": "tokenizer",
    "revision": "revision",
    "tokenizer_revision": "tokenizer_revision",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_memory": "kv_cache_memory_bytes",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "seed": "seed",
    "enable_prefix_caching": "enable_prefix_caching",
    "logprobs_mode": "logprobs_mode",
    "max_logprobs": "max_logprobs",
}
_METHODS = {"head": "eagle3"}  # the rest have our names
# vLLM's names that translation sets, and where the user sets them; some always, the others only when the user does.
_ALWAYS = ("model", "dtype", "speculative_config")
_OURS = {**{theirs: ours for ours, theirs in _ENGINE.items()}, "model": "model", "dtype": "dtype"}
_OURS |= dict.fromkeys(("speculative_config", "spec_method", "spec_model", "spec_tokens"), "speculative_config")

# Requests: every field that vLLM has under our name.
_SAMPLING = (
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("stop", "stop_token_ids", "bad_words", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "detokenize"),
    *("skip_special_tokens", "include_stop_str_in_output", "logit_bias", "allowed_token_ids"),
)


def engine_arguments(config: EngineConfig) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs. Raises ConfigError when backend_options repeat what has a name here."""
    for name in config.backend_options:
        ours = _OURS.get(name)
        if ours in (*_ALWAYS, *config.given):
            raise ConfigError(f"backend_options[{name!r}]: write {ours}=... instead, as for every backend")
    out: dict[str, Any] = {"model": config.model, "dtype": config.dtype}
    out |= {theirs: getattr(config, ours) for ours, theirs in _ENGINE.items() if ours in config.given and getattr(config, ours) is not None}
    # Grammars mean the same on both backends: the same library reads them.
    out["structured_outputs_config"] = {"backend": "guidance"}
    spec = config.speculative
    if spec.method != "none":
        out["speculative_config"] = speculative_config(spec)
        out["per_request_spec_decode_metrics"] = "detailed"
        if out["speculative_config"].get("model") == PROPOSER:
            out["additional_config"] = {OUR_KEY: _set_fields(spec)}
    return {**out, **config.backend_options}


def speculative_config(spec: SpeculativeConfig) -> dict[str, Any]:
    """vLLM's `speculative_config`, of a method other than "none"."""
    options = dict(spec.backend_options or {})
    arctic = options.pop("arctic", False)
    out: dict[str, Any] = {"num_speculative_tokens": spec.num_speculative_tokens}
    if spec.method == "ngram":
        out |= {"method": "ngram", "prompt_lookup_max": spec.prompt_lookup_max, "prompt_lookup_min": spec.prompt_lookup_min}
    elif spec.method == "suffix" and arctic:
        names = ("max_spec_factor", "min_token_prob", "max_cached_requests")
        out |= {"method": "suffix", **{f"suffix_decoding_{n}": getattr(spec, f"suffix_decoding_{n}") for n in names}}
        out["suffix_decoding_max_tree_depth"] = spec.suffix_decoding_max_tree_depth or spec.num_speculative_tokens
    elif spec.method in CHECKPOINT_METHODS:
        greedy = spec.draft_temperature == 0 or options.get("use_heterogeneous_vocab")
        out |= {"method": _METHODS.get(spec.method, spec.method), "draft_sample_method": "greedy" if greedy else "probabilistic"}
        out["rejection_sample_method"] = "block" if spec.verify == "block" else "standard"
        names = ("model", "revision", "max_model_len")
        out |= {name: value for name in names if (value := getattr(spec, name)) is not None}
    else:  # suffix, corpus, and the drafters of others: ours, inside vLLM
        out |= {"method": "custom_class", "model": PROPOSER}
    return {**out, **options}


def sampling_arguments(params: SamplingParams) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams: those that differ from the default, ready for JSON."""
    defaults = {f.name: None if f.default is MISSING else f.default for f in fields(SamplingParams)}
    out = {name: value for name in _SAMPLING if (value := getattr(params, name)) != defaults[name] and value not in ((), {})}
    if isinstance(params.structured_outputs, StructuredOutputsParams):
        wanted = {k: v for k, v in asdict(params.structured_outputs).items() if v not in (None, False)}
        schema = params.structured_outputs.json
        out["structured_outputs"] = wanted if schema is None else {**wanted, "json": json.dumps(schema)}
    return out


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """The same arguments as options of `vllm serve`; `model` comes first, without a name."""
    out = [str(arguments["model"])]
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if name == "model" or value is None:
            continue
        if isinstance(value, bool):
            out.append(flag if value else "--no-" + flag[2:])
        else:
            out += [flag, json.dumps(value) if isinstance(value, (dict, list, tuple)) else str(value)]
    return out


def _set_fields(spec: SpeculativeConfig) -> dict[str, Any]:
    """What makes an equal SpeculativeConfig elsewhere."""
    return {f.name: value for f in fields(spec) if (value := getattr(spec, f.name)) is not None and f.name != "backend_options"}
