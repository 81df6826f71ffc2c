"""EngineConfig and SpeculativeConfig: frozen, validated once. Old and foreign argument names are translated here.

Nothing a user sets is ignored: an argument acts, or is refused here with the reason and the next thing to try.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headstart.core.checks import flag, integer, number, text
from headstart.core.errors import ConfigError, names_nearest, nearest
from headstart.core.params import VERIFY_RULES

DEFAULT_DRAFTS = 5
MAX_DRAFTS = 128
METHODS = ("none", "ngram", "draft_model")

# What a draft length, a draft and a method are called elsewhere -> here. Used for `LLM(...)` and on the command line.
OLD_ARGUMENTS = {
    "speculative_model": "model",
    "draft_model": "model",
    "spec_model": "model",
    "assistant_model": "model",
    "spec_method": "method",
    "spec_tokens": "num_speculative_tokens",
    "num_speculative_tokens": "num_speculative_tokens",
    "num_assistant_tokens": "num_speculative_tokens",
    "num_draft_tokens": "num_speculative_tokens",
    "draft_max": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_max_model_len": "max_model_len",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
}

# Keys of vLLM's speculative_config that mean something else here, or nothing on a single device.
_REFUSED = {
    "draft_tensor_parallel_size": "only 1 is possible: the native engine runs on one device",
    "disable_by_batch_size": "not available: set num_speculative_tokens=0 in SamplingParams for a request without drafts",
    "num_speculative_tokens_per_batch_size": "not available yet: drafts are the same length at every batch size",
    "use_heterogeneous_vocab": "not available yet: the draft must share the target's tokenizer",
    "quantization": "not available: the draft is loaded as its checkpoint is stored",
    "parallel_drafting": "not available: drafts are made one after the other",
}

# The values of those that ask for exactly what happens anyway.
_HARMLESS = {"draft_tensor_parallel_size": 1, "use_heterogeneous_vocab": False, "parallel_drafting": False}


@names_nearest
@dataclass(frozen=True)
class SpeculativeConfig:
    """How drafts are made and judged.

    method: "none", "ngram" (lookup in the context) or "draft_model"; may be left out when `model` says it.
    model: the draft checkpoint (directory, GGUF file or hub id), for draft_model.
    num_speculative_tokens: drafts per step, 1..128 (default 5).
    prompt_lookup_max, prompt_lookup_min: longest and shortest match of ngram (default 4 and 2; one set, the other
        copies it, as in vLLM).
    verify: "rejection" (default), "block" (never fewer tokens than rejection) or "match" (for a seed, the text of
        plain sampling).
    draft_temperature: the draft's own temperature; None takes the request's, 0 drafts greedily. Lossless at any value.
    max_model_len: a context limit for the draft below its own.
    revision: of the draft on the hub.

    Raises ConfigError on anything out of range or contradictory.
    """

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    verify: str = "rejection"
    draft_temperature: float | None = None
    max_model_len: int | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - frozen, and only here
        text("model", self.model)
        text("revision", self.revision)
        if self.model in ("[ngram]", "ngram"):  # the form of older vLLM
            if self.method not in (None, "ngram"):
                raise ConfigError(f"model={self.model!r} contradicts method={self.method!r}: leave one of them out")
            put("model", None)
            put("method", "ngram")
        if self.method is None:
            lookup = self.prompt_lookup_max is not None or self.prompt_lookup_min is not None
            if not self.model and not lookup:
                raise ConfigError("speculation has neither method nor model: set method='ngram' or model=DRAFT")
            put("method", "draft_model" if self.model else "ngram")
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r} is not available: {nearest(str(self.method), METHODS)}")
        if self.method == "draft_model" and not self.model:
            raise ConfigError("method='draft_model' needs model=DRAFT: a directory, a GGUF file or a hub id")
        for name, owner in (
            ("model", "draft_model"),
            ("revision", "draft_model"),
            ("max_model_len", "draft_model"),
            ("draft_temperature", "draft_model"),
            ("prompt_lookup_max", "ngram"),
            ("prompt_lookup_min", "ngram"),
        ):
            if getattr(self, name) is not None and self.method != owner:
                raise ConfigError(f"{name}={getattr(self, name)!r} has no effect with method={self.method!r}: it belongs to {owner}")
        if self.method == "ngram":
            for name in ("prompt_lookup_max", "prompt_lookup_min"):
                if getattr(self, name) is not None:
                    integer(name, getattr(self, name), 1, 64)
            high = self.prompt_lookup_max or self.prompt_lookup_min or 4
            low = self.prompt_lookup_min or self.prompt_lookup_max or 2
            if low > high:
                raise ConfigError(f"prompt_lookup_min={low} is above prompt_lookup_max={high}")
            put("prompt_lookup_max", high)
            put("prompt_lookup_min", low)
        if self.num_speculative_tokens is None:
            put("num_speculative_tokens", 0 if self.method == "none" else DEFAULT_DRAFTS)
        elif self.method == "none":
            integer("num_speculative_tokens", self.num_speculative_tokens, 0, 0)
        else:
            integer("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFTS)
        if self.verify not in VERIFY_RULES:
            raise ConfigError(f"verify={self.verify!r} is not a rule: {nearest(str(self.verify), VERIFY_RULES)}")
        if self.draft_temperature is not None:
            number("draft_temperature", self.draft_temperature, 0.0, 1e4)
        if self.max_model_len is not None:
            integer("max_model_len", self.max_model_len, 1, 1 << 31)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> SpeculativeConfig:
        """Read vLLM's `speculative_config` dictionary: its keys act, or are refused by name with the nearest valid one."""
        out: dict[str, Any] = {}
        for raw, value in given.items():
            name = str(raw).replace("-", "_")
            if value is None:
                continue
            if name == "rejection_sample_method":
                rules = {"standard": "rejection", "block": "block"}
                if not isinstance(value, str) or value not in rules:
                    raise ConfigError(f"rejection_sample_method={value!r} is not lossless or not known: {nearest(str(value), rules)}")
                name, value = "verify", rules[value]
            elif name == "draft_sample_method":
                if value not in ("greedy", "probabilistic"):
                    raise ConfigError(f"draft_sample_method={value!r} must be 'greedy' or 'probabilistic'")
                if value == "probabilistic":
                    continue  # our default: the draft samples from its warped law and reports it
                name, value = "draft_temperature", 0.0
            elif name in _REFUSED:
                if value is _HARMLESS.get(name):
                    continue  # asks for exactly what happens anyway
                raise ConfigError(f"speculative_config[{raw!r}]={value!r}: {_REFUSED[name]}")
            _put_once(out, name, value, str(raw))
        return cls(**out)

    def describe(self) -> str:
        """The start-up line: what runs."""
        if self.method == "none":
            return "speculation: off"
        what = f"draft_model {self.model}" if self.model else f"{self.method} (match {self.prompt_lookup_max}..{self.prompt_lookup_min})"
        return f"speculation: {what}, up to k={self.num_speculative_tokens}, verify={self.verify}"


def _put_once(out: dict[str, Any], name: str, value: Any, said: str) -> None:
    if name in out and out[name] != value:
        raise ConfigError(f"{said}={value!r} contradicts {name}={out[name]!r}: leave one of them out")
    out[name] = value


def parse_bytes(name: str, value: int | float | str) -> int:
    """A size in bytes: an integer, or text such as "2GiB", "512MB", "1.5g"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < math.inf:
        return int(value)
    m = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", value.lower()) if isinstance(value, str) else None
    size = int(float(m[1]) * (1024 if m[3] else 1000) ** " kmgt".index(m[2] or " ")) if m else 0
    if size < 1:
        raise ConfigError(f"{name}={value!r} is not a size: write bytes or '2GiB', '512MB'")
    return size


LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")

# Arguments of vLLM's LLM that ask for what the native engine does anyway: accepted at these values, refused otherwise.
_FOREIGN_OK: dict[str, tuple[tuple[Any, ...], str]] = {
    "tensor_parallel_size": ((1,), "the native engine runs on one device"),
    "pipeline_parallel_size": ((1,), "the native engine runs on one device"),
    "data_parallel_size": ((1,), "the native engine runs on one device"),
    "tokenizer_mode": (("auto",), "only 'auto' is available"),
    "trust_remote_code": ((False,), "code shipped with a checkpoint is never run"),
    "enforce_eager": ((True, False), ""),
    "disable_log_stats": ((True, False), ""),
    "quantization": ((None,), "weights are used as the checkpoint stores them; GGUF is dequantised at load"),
}


@names_nearest
@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine is told, with vLLM's names.

    model, tokenizer: directory, GGUF file or hub id; tokenizer None takes the model's.
    dtype: "auto" is bfloat16 where this processor computes in it, else float32; or a name of `DTYPES`.
    max_model_len: context limit in tokens, None for the model's own.
    max_num_seqs: sequences that run at once. max_num_batched_tokens: rows of one pass, prefill and drafts included.
    block_size: tokens per KV block. kv_cache_memory: bytes (or "2GiB") for KV, target and draft together.
    gpu_memory_utilization: instead of kv_cache_memory, the share of the device's memory that weights and KV may take.
    enable_prefix_caching: share the KV of equal prompt beginnings.
    seed: with a number, requests without a seed of their own are reproducible; None draws fresh seeds.
    device: "cpu", "cuda", "cuda:N", or "auto".
    logprobs_mode: whether log probabilities are the model's own ("raw_logprobs") or those after every option of the
        request ("processed_logprobs"). max_logprobs: the most a request may ask for; -1 for no limit.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_memory: int | str | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = True
    seed: int | None = 0
    device: str = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    chat_template: str | None = None
    hf_token: str | None = None
    logprobs_mode: str = "raw_logprobs"
    max_logprobs: int = 20
    speculative: SpeculativeConfig = SpeculativeConfig(method="none")

    def __post_init__(self) -> None:
        if not self.model or not isinstance(self.model, str):
            raise ConfigError(f"model={self.model!r} must be a directory, a GGUF file or a hub id")
        dtype = str(self.dtype).removeprefix("torch.")
        dtype = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}.get(
            dtype, dtype
        )
        if dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} is not available: {nearest(dtype, DTYPES)}")
        object.__setattr__(self, "dtype", dtype)
        if self.max_model_len is not None:
            integer("max_model_len", self.max_model_len, 1, 1 << 31)
        integer("max_num_seqs", self.max_num_seqs, 1, 1 << 16)
        integer("max_num_batched_tokens", self.max_num_batched_tokens, 1, 1 << 24)
        integer("block_size", self.block_size, 1, 1 << 16)
        if self.kv_cache_memory is not None:
            object.__setattr__(self, "kv_cache_memory", parse_bytes("kv_cache_memory", self.kv_cache_memory))
        if self.gpu_memory_utilization is not None:
            if self.kv_cache_memory is not None:
                raise ConfigError("kv_cache_memory and gpu_memory_utilization both set the KV budget: leave one of them out")
            number("gpu_memory_utilization", self.gpu_memory_utilization, 0.0, 1.0, open_low=True)
        for name in ("tokenizer", "revision", "tokenizer_revision", "chat_template", "hf_token"):
            text(name, getattr(self, name))
        flag("enable_prefix_caching", self.enable_prefix_caching)
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ConfigError(f"logprobs_mode={self.logprobs_mode!r} is not available: {nearest(str(self.logprobs_mode), LOGPROBS_MODES)}")
        integer("max_logprobs", self.max_logprobs, -1, 1 << 31)
        if not isinstance(self.speculative, SpeculativeConfig):
            raise ConfigError(f"speculative={self.speculative!r} must be a SpeculativeConfig")
        if self.seed is not None:
            integer("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device={self.device!r} must be 'auto', 'cpu', 'cuda' or 'cuda:N'")


def build_config(model: str, arguments: Mapping[str, Any]) -> tuple[EngineConfig, list[str]]:
    """EngineConfig from the keyword arguments of `LLM`, old and foreign spellings included.

    Returns the config and notes for the user (the new form of an old argument). Raises ConfigError on anything
    unknown or contradictory.
    """
    out: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    notes: list[str] = []
    valid = {f.name for f in fields(EngineConfig)} - {"model", "speculative"}
    given = dict(arguments)
    modern = given.pop("speculative_config", None)
    for name, value in given.items():
        if name in OLD_ARGUMENTS:
            if value is not None:
                _put_once(spec, OLD_ARGUMENTS[name], value, name)
        elif name in ("kv_cache_memory_bytes", "kv_cache_memory"):
            if value is not None:
                _put_once(out, "kv_cache_memory", value, name)
        elif name in _FOREIGN_OK:
            allowed, why = _FOREIGN_OK[name]
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is not available: {why}")
        elif name in valid:
            out[name] = value
        else:
            known = valid | set(OLD_ARGUMENTS) | set(_FOREIGN_OK) | {"speculative_config"}
            raise ConfigError(f"LLM has no argument {name!r}: {nearest(name, known)}")
    if isinstance(modern, SpeculativeConfig):
        if spec:
            raise ConfigError(f"speculative_config and {', '.join(spec)} both set speculation: use speculative_config alone")
        out["speculative"] = modern
    elif modern is not None or spec:
        if modern is not None and not isinstance(modern, Mapping):
            raise ConfigError(f"speculative_config={modern!r} must be a dictionary or a SpeculativeConfig")
        merged: dict[str, Any] = {}
        for k, v in (modern or {}).items():
            _put_once(merged, str(k).replace("-", "_"), v, str(k))
        for name, value in spec.items():
            _put_once(merged, name, value, name)
        if set(merged) == {"num_speculative_tokens"}:
            raise ConfigError(
                "num_speculative_tokens is set but nothing drafts: add speculative_config={'method': 'ngram'} or a draft model"
            )
        out["speculative"] = SpeculativeConfig.from_dict(merged)
        if spec:
            notes.append(f"these arguments now read speculative_config={merged!r}")
    return EngineConfig(model=model, **out), notes
