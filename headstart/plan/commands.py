"""The command lines that run a plan: here, where one device is enough and the family is one that runs here; and on vLLM."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from headstart.core.memory import blocks_of, bytes_per_token
from headstart.plan.fit import Fit
from headstart.plan.types import KV_BYTES, Ask


def commands(ask: Ask, runs: Fit, batch: int) -> list[tuple[str, str]]:
    """(where, command line), or (where, why not)."""
    return [("headstart", _here(ask, runs, batch)), ("vLLM", _vllm(ask, runs, batch))]


def _here(ask: Ask, runs: Fit, batch: int) -> str:
    if runs.devices > 1:
        return "not here: the native engine runs on one device"
    computed = ask.kv_dtype if ask.dtype in ("int8", "int4") else ask.dtype
    if computed != ask.kv_dtype or computed not in ("float32", "float16", "bfloat16"):
        return f"not here: keys and values are kept in what is computed in, not {ask.dtype} with {ask.kv_dtype}"
    quantised = ["--quantization", ask.dtype] if computed != ask.dtype else []
    drafts = ["--draft", ask.draft.name if ask.draft else ask.draft_name, "-k", str(ask.k)] if ask.draft_name else []
    page = sum(bytes_per_token(s.cache, KV_BYTES[ask.kv_dtype]) for s in (ask.target, ask.draft) if s) * ask.block_size
    kv = math.ceil(batch * blocks_of(ask.context, ask.block_size) * page / 2**20)
    line = _join(
        "headstart", "serve", ask.target.name, *drafts, "--dtype", computed, *quantised, "--max-model-len", str(ask.context),
        "--max-num-seqs", str(batch), "--block-size", str(ask.block_size), "--kv-cache-memory", f"{kv}MiB",
    )  # fmt: skip
    return line + _beyond(ask)


def _beyond(ask: Ask) -> str:
    """What to know of a family that has no code of its own here."""
    from headstart.runtime.loader import FAMILIES

    other = next((s for s in (ask.target, ask.draft) if s is not None and s.family not in FAMILIES), None)
    return f"    # {other.family} has no code of its own here: headstart inspect {other.name} says whether it runs" if other else ""


def _vllm(ask: Ask, runs: Fit, batch: int) -> str:
    if any(s is not None and s.name.endswith(".gguf") for s in (ask.target, ask.draft)):
        return "name the checkpoint that the GGUF file was made from: vLLM computes with that"
    if ask.dtype in ("int8", "int4"):
        return (
            f"name a checkpoint of it that is stored in {ask.dtype} (AWQ, GPTQ, compressed-tensors): vLLM does not quantise to that at load"
        )
    line = ["vllm", "serve", ask.target.name, "--max-model-len", str(ask.context), "--max-num-seqs", str(batch)]
    if runs.devices > 1:
        line += ["--tensor-parallel-size", str(runs.devices)]
    if ask.dtype in ("float32", "float16", "bfloat16"):
        line += ["--dtype", ask.dtype]
    elif ask.dtype == "fp8":
        line += ["--quantization", "fp8"]
    if ask.kv_dtype == "fp8":
        line += ["--kv-cache-dtype", "fp8"]
    line += ["--gpu-memory-utilization", f"{ask.share:g}"]
    if ask.draft_name:
        line += ["--speculative-config", json.dumps(_speculation(ask))]
    return _join(*line)


def _speculation(ask: Ask) -> dict[str, Any]:
    if ask.draft is not None:
        return {"method": "draft_model", "model": ask.draft.name, "num_speculative_tokens": ask.k}
    bounds = {"prompt_lookup_max": 4, "prompt_lookup_min": 2} if ask.draft_name == "ngram" else {}
    return {"method": ask.draft_name, "num_speculative_tokens": ask.k, **bounds}


def _join(*words: str | None) -> str:
    return " ".join(shlex.quote(str(w)) for w in words)
