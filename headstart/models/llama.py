"""The Llama family (llama 2 and 3, SmolLM and SmolLM2): a checkpoint's config to a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig

MODEL_TYPES = ("llama",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Raises ModelError when a field is missing or asks for something this decoder does not compute."""
    act = config.get("hidden_act", "silu")
    if act != "silu":
        raise ModelError(f"hidden_act={act!r} is not supported for llama models; supported: silu")
    rope = config.get("rope_parameters") or {}  # transformers 5; before, rope_theta and rope_scaling
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return ModelConfig(
            vocab_size=config["vocab_size"],
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            eps=config.get("rms_norm_eps", 1e-6),
            max_len=config["max_position_embeddings"],
            rope_theta=rope.get("rope_theta") or config.get("rope_theta", 10000.0),
            rope_scaling=rope or config.get("rope_scaling"),
            tied=config.get("tie_word_embeddings", False),
            attention_bias=config.get("attention_bias", False),
            mlp_bias=config.get("mlp_bias", False),
        )
    except KeyError as e:
        raise ModelError(f"config.json has no field {e.args[0]!r}: is this a Llama checkpoint?") from None
