"""Qwen3: a norm over each head of q and k before they turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.models.decoder import ModelConfig
from headstart.models.fields import common
from headstart.models.qwen2 import upper_layers

MODEL_TYPES = ("qwen3",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    return common(config, defaults={"head_dim": 128}, qk_norm="head", mlp_bias=False, **upper_layers(config))
