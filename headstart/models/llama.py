"""The Llama family (llama 2 and 3, SmolLM and SmolLM2): a checkpoint's config to a ModelConfig."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig

MODEL_TYPES = ("llama",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Raises ModelError when a field is missing, makes no sense, or asks for something this decoder does not compute."""
    act = config.get("hidden_act", "silu")
    if act != "silu":
        raise ModelError(f"hidden_act={act!r} is not supported for llama models; supported: silu")
    field = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"  # transformers 5, and before
    rope = config.get(field) or {}
    if not isinstance(rope, Mapping):
        raise ModelError(f"{field}={rope!r} in the config must be a dictionary")
    heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    kv_heads, head_dim = _whole(config, "num_key_value_heads", heads), _whole(config, "head_dim", hidden // heads)
    if heads % kv_heads:
        raise ModelError(f"num_key_value_heads={kv_heads} in the config does not divide num_attention_heads={heads}")
    if head_dim % 2:
        raise ModelError(f"head_dim={head_dim} in the config must be even: rotary embedding turns pairs")
    return ModelConfig(
        vocab_size=_whole(config, "vocab_size"),
        hidden=hidden,
        layers=_whole(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=_whole(config, "intermediate_size"),
        eps=_number(config, "rms_norm_eps", 1e-6),
        max_len=_whole(config, "max_position_embeddings"),
        rope_theta=_number(rope if rope.get("rope_theta") else config, "rope_theta", 10000.0),
        rope_scaling=rope or None,
        tied=config.get("tie_word_embeddings", False),
        attention_bias=config.get("attention_bias", False),
        mlp_bias=config.get("mlp_bias", False),
    )


def _whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        if default is None:
            raise ModelError(f"the config has no field {name!r}: is this a Llama checkpoint?")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name}={value!r} in the config must be a positive integer")
    return value


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(f"{name}={value!r} in the config must be a positive number")
    return value
