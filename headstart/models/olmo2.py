"""OLMo 2: norms after each block instead of before it, and over all heads of q and of k together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.models.decoder import ModelConfig
from headstart.models.fields import common

MODEL_TYPES = ("olmo2",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    return common(config, defaults={"rms_norm_eps": 1e-5}, norms="after", qk_norm="all", mlp_bias=False)
