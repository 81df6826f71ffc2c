"""Mistral: the Llama decoder without biases; in its first version every layer sees a window only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.models.decoder import ModelConfig
from headstart.models.fields import common, sliding, whole

MODEL_TYPES = ("mistral",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    everywhere = (True,) * whole(config, "num_hidden_layers")
    return common(
        {"sliding_window": 4096, **config}, attention_bias=False, mlp_bias=False, **sliding({"sliding_window": 4096, **config}, everywhere)
    )
