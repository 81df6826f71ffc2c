"""Qwen2 and Qwen2.5: biases on q, k and v; with use_sliding_window the upper layers see a window only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.models.decoder import ModelConfig
from headstart.models.fields import common, sliding, whole

MODEL_TYPES = ("qwen2",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    return common(config, qkv_bias=True, attention_bias=False, mlp_bias=False, **upper_layers(config))


def upper_layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen's rule: layers from max_window_layers on slide, if use_sliding_window says so."""
    if not config.get("use_sliding_window", False):
        return {}
    first = config.get("max_window_layers", 28)
    return sliding({"sliding_window": 4096, **config}, tuple(i >= first for i in range(whole(config, "num_hidden_layers"))))
