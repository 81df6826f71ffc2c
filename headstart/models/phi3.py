"""Phi-3 and Phi-4: q, k and v are stored as one matrix, gate and up as another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig, Source
from headstart.models.fields import common, sliding, whole
from headstart.ops.quant import Quantised, Weight

MODEL_TYPES = ("phi3",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    everywhere = (True,) * whole(config, "num_hidden_layers")
    given = {"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, **config}
    return common(given, attention_bias=False, mlp_bias=False, **sliding(config, everywhere))


def adapt(source: Source, config: ModelConfig) -> Source:
    """A source of the parts under Llama's names, cut out of the stored whole."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    cuts = {
        "q_proj": ("qkv_proj", 0, queries),
        "k_proj": ("qkv_proj", queries, queries + keys),
        "v_proj": ("qkv_proj", queries + keys, queries + 2 * keys),
        "gate_proj": ("gate_up_proj", 0, config.intermediate),
        "up_proj": ("gate_up_proj", config.intermediate, 2 * config.intermediate),
    }
    last: dict[str, Weight] = {}  # the matrix cut last: its parts are asked for one after another

    def part(name: str) -> Weight:
        stem, _, kind = name.rpartition(".")
        block, _, piece = stem.rpartition(".")
        if piece not in cuts:
            return source(name)
        stored, start, stop = cuts[piece]
        joined = f"{block}.{stored}.{kind}"
        if joined not in last:
            last.clear()
            last[joined] = source(joined)
        rows = max(end for s, _, end in cuts.values() if s == stored)
        if last[joined].shape[0] != rows:
            raise ModelError(f"tensor {joined!r} has {last[joined].shape[0]} rows, the config says {rows}: they are of different models")
        weight = last[joined]
        return weight.rows(torch.arange(start, stop)) if isinstance(weight, Quantised) else weight[start:stop]

    return part
