"""EngineConfig: frozen, validated once. Old and foreign argument names are translated here.

Nothing a user sets is ignored: an argument acts, or is refused here with the reason and the next thing to try.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headstart.core.checks import flag, integer, number, put_once, quantization, text
from headstart.core.errors import ConfigError, names_nearest, nearest
from headstart.core.speculation import SpeculativeConfig

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


def parse_bytes(name: str, value: int | float | str) -> int:
    """A size in bytes: an integer, or text such as "2GiB", "512MB", "1.5g"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < math.inf:
        return int(value)
    m = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", value.lower()) if isinstance(value, str) else None
    size = int(float(m[1]) * (1024 if m[3] else 1000) ** " kmgt".index(m[2] or " ")) if m else 0
    if size < 1:
        raise ConfigError(f"{name}={value!r} is not a size: write bytes or '2GiB', '512MB'")
    return size


BACKENDS = ("native", "vllm")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")

# Arguments of vLLM's LLM that ask for what the native engine does anyway: accepted at these values, refused otherwise.
# With backend="vllm" any value is handed on.
_ONE_DEVICE = "the native engine runs on one device; backend='vllm' runs on several, see docs/scale.md"
_FOREIGN_OK: dict[str, tuple[tuple[Any, ...], str]] = {
    "tensor_parallel_size": ((1,), _ONE_DEVICE),
    "pipeline_parallel_size": ((1,), _ONE_DEVICE),
    "data_parallel_size": ((1,), _ONE_DEVICE),
    "tokenizer_mode": (("auto",), "only 'auto' is available"),
    "trust_remote_code": ((False,), "code shipped with a checkpoint is never run"),
    "enforce_eager": ((True, False), ""),
    "disable_log_stats": ((True, False), ""),
}


@names_nearest
@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine is told, with vLLM's names.

    model, tokenizer: directory, GGUF file or hub id; tokenizer None takes the model's.
    dtype: "auto" is bfloat16 where this processor computes in it, or where the kernels run the model and its weights are stored no
        finer; else float32. Or a name of `DTYPES`.
    quantization: "int8" or "int4" to quantise the target's weights at load; None for the checkpoint's numbers in `dtype`.
    max_model_len: context limit in tokens, None for the model's own.
    max_num_seqs: sequences that run at once. max_num_batched_tokens: rows of one pass, prefill and drafts included.
    block_size: tokens per KV block. kv_cache_memory: bytes (or "2GiB") for KV, target and draft together.
    gpu_memory_utilization: instead of kv_cache_memory, the share of the device's memory that weights and KV may take.
    enable_prefix_caching: share the KV of equal prompt beginnings.
    seed: with a number, requests without a seed of their own are reproducible; None draws fresh seeds.
    device: "cpu", "cuda", "cuda:N", or "auto".
    logprobs_mode: whether log probabilities are the model's own ("raw_logprobs") or those after every option of the
        request ("processed_logprobs"). max_logprobs: the most a request may ask for; -1 for no limit.
    backend: "native", or "vllm" (an environment of its own, see docs/scale.md): `backend_options` are handed to it by its own
        names, `vllm_python` is the Python that has it (default: this one, or $HEADSTART_VLLM_PYTHON).
    given: which of these the user set; another backend keeps its own defaults for the rest.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
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
    backend: str = "native"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    vllm_python: str | None = None
    given: frozenset[str] = frozenset()
    speculative: SpeculativeConfig = field(default_factory=lambda: SpeculativeConfig(method="none"))

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
        quantization("quantization", self.quantization)
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
        for name in ("tokenizer", "revision", "tokenizer_revision", "chat_template", "hf_token", "vllm_python"):
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
        self._check_backend()

    def _check_backend(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(f"backend={self.backend!r} is not available: {nearest(str(self.backend), BACKENDS)}")
        if not isinstance(self.backend_options, Mapping):
            raise ConfigError(f"backend_options={self.backend_options!r} must be a dictionary: it is handed to the backend")
        if not isinstance(self.given, frozenset):
            raise ConfigError(f"given={self.given!r} must be a frozenset of names: build_config makes it")
        if self.backend != "native":
            return
        for name in ("backend_options", "vllm_python"):
            if getattr(self, name):
                raise ConfigError(f"{name}={getattr(self, name)!r} has no effect with backend='native': add backend='vllm' or leave it out")
        self.speculative.check_native()


def build_config(model: str, arguments: Mapping[str, Any]) -> tuple[EngineConfig, list[str]]:
    """EngineConfig from the keyword arguments of `LLM`, old and foreign spellings included.

    Returns the config and notes for the user (the new form of an old argument). Raises ConfigError on anything
    unknown or contradictory.
    """
    out: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    notes: list[str] = []
    valid = {f.name for f in fields(EngineConfig)} - {"model", "speculative", "given"}
    given = dict(arguments)
    modern = given.pop("speculative_config", None)
    backend = given.get("backend", "native")
    handed: dict[str, Any] = {}  # vLLM's own arguments
    for name, value in given.items():
        if name in OLD_ARGUMENTS:
            if value is not None:
                put_once(spec, OLD_ARGUMENTS[name], value, name)
        elif name in ("kv_cache_memory_bytes", "kv_cache_memory"):
            if value is not None:
                put_once(out, "kv_cache_memory", value, name)
        elif name in (*_FOREIGN_OK, "quantization") and backend == "vllm" and name != "trust_remote_code":
            handed[name] = value
        elif name in _FOREIGN_OK:
            allowed, why = _FOREIGN_OK[name]
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is not available: {why}")
        elif name in valid:
            out[name] = value
        else:
            known = valid | set(OLD_ARGUMENTS) | set(_FOREIGN_OK) | {"speculative_config"}
            handed_on = f"; what only vLLM knows goes into backend_options={{{name!r}: ...}}" if backend == "vllm" else ""
            raise ConfigError(f"LLM has no argument {name!r}: {nearest(name, known)}{handed_on}")
    if handed:
        out["backend_options"] = merged_options(handed, out.get("backend_options"))
    if isinstance(modern, SpeculativeConfig):
        if spec:
            raise ConfigError(f"speculative_config and {', '.join(spec)} both set speculation: use speculative_config alone")
        out["speculative"] = modern
    elif modern is not None or spec:
        if modern is not None and not isinstance(modern, Mapping):
            raise ConfigError(f"speculative_config={modern!r} must be a dictionary or a SpeculativeConfig")
        merged: dict[str, Any] = {}
        for k, v in (modern or {}).items():
            put_once(merged, str(k).replace("-", "_"), v, str(k))
        for name, value in spec.items():
            put_once(merged, name, value, name)
        if set(merged) == {"num_speculative_tokens"}:
            raise ConfigError(
                "num_speculative_tokens is set but nothing drafts: add speculative_config={'method': 'ngram'} or a draft model"
            )
        out["speculative"] = SpeculativeConfig.from_dict(merged, backend)
        if spec:
            notes.append(f"these arguments now read speculative_config={merged!r}")
    return EngineConfig(model=model, **out, given=frozenset(out)), notes


def merged_options(handed: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """backend_options with the arguments that have names of their own. Raises ConfigError when both name one and differ."""
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"backend_options={options!r} must be a dictionary: it is handed to the backend")
    merged = dict(handed)
    for name, value in (options or {}).items():
        put_once(merged, str(name).replace("-", "_"), value, f"backend_options[{name!r}]")
    return merged
