"""Granite: the Llama decoder with four multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.models.decoder import ModelConfig
from headstart.models.fields import common, number

MODEL_TYPES = ("granite",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    return common(
        config,
        embedding_scale=number(config, "embedding_multiplier", 1.0),
        residual_scale=number(config, "residual_multiplier", 1.0),
        attention_scale=number(config, "attention_multiplier", 1.0),
        logit_scale=1 / number(config, "logits_scaling", 1.0),
    )
