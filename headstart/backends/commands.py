"""Command lines of other servers for one of our configurations: vLLM, SGLang, llama.cpp. Builds lists of words, starts nothing.

What a server has no option for is said in a note beside its command, never left out in silence.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headstart.backends.vllm.refuse import refuse_config
from headstart.backends.vllm.translate import PROPOSER, engine_arguments, flags
from headstart.core.config import EngineConfig
from headstart.core.errors import ConfigError
from headstart.core.speculation import SpeculativeConfig

_KEY = '"$KEY"'  # the shell's to fill in: a key is not printed


@dataclass(frozen=True)
class Door:
    """Where a server listens and whom it lets in. `chat_template` is a file."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_name: str = ""
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    chat_template: str | None = None
    request_metrics: str = "summary"


@dataclass(frozen=True)
class Command:
    """A command line and what it does not say. `variables` go in front of it."""

    words: list[str]
    notes: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For a shell: comments, then the command with one option a line."""
        parts: list[list[str]] = [[f"{k}={v}" for k, v in self.variables.items()]]  # values are written for the shell
        for word in self.words:
            if word.startswith("--") or not parts[-1]:
                parts.append([])
            parts[-1].append(_KEY if word == _KEY else shlex.quote(word))
        body = " \\\n  ".join(" ".join(p) for p in parts if p)
        if self.variables:
            body = body.replace(" \\\n  ", " ", 1)
        return [*(f"# {note}" for note in self.notes), body]


def vllm_arguments(config: EngineConfig, door: Door) -> dict[str, Any]:
    """Everything that `vllm serve` is told, by name; the key goes through its environment. Raises ConfigError."""
    refuse_config(config)
    arguments = engine_arguments(config) | {"host": door.host, "port": door.port, "served_model_name": door.served_name or None}
    if door.chat_template:
        arguments["chat_template"] = door.chat_template
    if door.cors_origins:
        arguments["allowed_origins"] = list(door.cors_origins)
    if "per_request_spec_decode_metrics" in arguments:
        arguments["per_request_spec_decode_metrics"] = door.request_metrics
    return arguments


def vllm(config: EngineConfig, door: Door) -> Command:
    """`vllm serve`."""
    arguments = vllm_arguments(config, door)
    notes = []
    if (arguments.get("speculative_config") or {}).get("model") == PROPOSER:
        notes.append("its drafter is headstart's: pip install --no-deps headstart there, on every node")
    variables = {"VLLM_API_KEY": _KEY} if door.api_key else {}
    return Command(["vllm", "serve", *flags(arguments)], notes, variables)


def sglang(config: EngineConfig, door: Door) -> Command:
    """`python -m sglang.launch_server`."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", config.model, "--host", door.host, "--port", str(door.port)]
    options = config.backend_options
    words += _given(
        ("--served-model-name", door.served_name),
        ("--tokenizer-path", config.tokenizer),
        ("--revision", config.revision),
        ("--dtype", config.dtype if config.dtype != "auto" else None),
        ("--context-length", config.max_model_len),
        ("--max-running-requests", config.max_num_seqs if "max_num_seqs" in config.given else None),
        ("--mem-fraction-static", config.gpu_memory_utilization),
        ("--random-seed", config.seed if "seed" in config.given else None),
        ("--chat-template", door.chat_template),
        ("--tp-size", options.get("tensor_parallel_size")),
        ("--pp-size", options.get("pipeline_parallel_size")),
        ("--dp-size", options.get("data_parallel_size")),
        ("--quantization", options.get("quantization")),
        ("--nnodes", options.get("nnodes")),
        ("--node-rank", options.get("node_rank")),
    )
    if not config.enable_prefix_caching:
        words.append("--disable-radix-cache")
    words += _sglang_drafts(config.speculative)
    known = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization", "nnodes", "node_rank")
    return Command(words + (["--api-key", _KEY] if door.api_key else []), _left_out(config, known))


def _sglang_drafts(spec: SpeculativeConfig) -> list[str]:
    k = str(spec.num_speculative_tokens)
    if spec.method == "none":
        return []
    if spec.method == "ngram":
        bounds = ["--speculative-ngram-min-match-window-size", str(spec.prompt_lookup_min)]
        bounds += ["--speculative-ngram-max-match-window-size", str(spec.prompt_lookup_max)]
        return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", k, *bounds]
    algorithm = {"draft_model": "STANDALONE", "eagle": "EAGLE", "head": "EAGLE3", "mtp": "NEXTN"}.get(str(spec.method))
    if algorithm is None:
        raise ConfigError(f"it has no drafts by {spec.method}: use ngram or a draft model")
    words = ["--speculative-algorithm", algorithm, *_given(("--speculative-draft-model-path", spec.model))]
    # A chain: one candidate at each of k steps; the token that is being continued counts as one of the tokens.
    return [*words, "--speculative-num-steps", k, "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(int(k) + 1)]


def llama_cpp(config: EngineConfig, door: Door) -> Command:
    """`llama-server`, which reads GGUF files."""
    notes: list[str] = []
    words = ["llama-server", "-m", _gguf(config.model, notes), "--host", door.host, "--port", str(door.port)]
    words += _given(
        ("--alias", door.served_name),
        ("--ctx-size", config.max_model_len),
        ("--parallel", config.max_num_seqs if "max_num_seqs" in config.given else None),
        ("--seed", config.seed if "seed" in config.given else None),
        ("--chat-template-file", door.chat_template),
    )
    spec, k = config.speculative, str(config.speculative.num_speculative_tokens)
    if spec.method == "draft_model":
        words += ["--spec-type", "draft-simple", "--spec-draft-model", _gguf(spec.model or "", notes), "--spec-draft-n-max", k]
    elif spec.method == "ngram":
        words += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(spec.prompt_lookup_max)]
        words += ["--spec-ngram-simple-size-m", k]
        notes.append("it looks for matches of one length only: the longest")
    elif spec.method != "none":
        raise ConfigError(f"it has no drafts by {spec.method}: use ngram or a draft model")
    if config.dtype != "auto":
        notes.append(f"dtype={config.dtype}: the GGUF file decides")
    return Command(words + (["--api-key", _KEY] if door.api_key else []), notes + _left_out(config, ()))


def _gguf(model: str, notes: list[str]) -> str:
    if model.endswith(".gguf"):
        return model
    notes.append(f"make a GGUF file of {model} first: python convert_hf_to_gguf.py {model} --outfile {model.rpartition('/')[2]}.gguf")
    return f"{model.rpartition('/')[2]}.gguf"


def _given(*options: tuple[str, object]) -> list[str]:
    return [word for name, value in options if value not in (None, "") for word in (name, str(value))]


def _left_out(config: EngineConfig, known: tuple[str, ...]) -> list[str]:
    """What was asked for and is not in a command."""
    notes = [f"{name}={value!r} is not translated" for name, value in config.backend_options.items() if name not in known]
    if config.kv_cache_memory is not None:
        notes.append(f"kv_cache_memory={config.kv_cache_memory}: it has no option for a size in bytes")
    return notes


SERVERS: dict[str, Callable[[EngineConfig, Door], Command]] = {"vLLM": vllm, "SGLang": sglang, "llama.cpp": llama_cpp}


def equivalents(config: EngineConfig, door: Door) -> list[str]:
    """The command lines of all servers, or why there is none, ready to be pasted into a shell."""
    out = ["# KEY holds the API key"] if door.api_key else []
    if config.quantization or config.speculative.quantization:
        out.append("# quantization: headstart quantises at load, these servers have methods of their own")
    config = _for_others(config)
    for name, make in SERVERS.items():
        out += ["", f"# {name}"]
        try:
            out += make(config, door).lines()
        except ConfigError as e:
            out.append(f"# not possible: {e}")
    return out if out[0] else out[1:]


def _for_others(config: EngineConfig) -> EngineConfig:
    """A native configuration as other servers can be told of it."""
    return replace(config, backend="vllm", quantization=None, speculative=replace(config.speculative, quantization=None))
