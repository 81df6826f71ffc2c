"""The Llama family: Llama 2 and 3, SmolLM and SmolLM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.models.decoder import ModelConfig
from headstart.models.fields import common

MODEL_TYPES = ("llama",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Raises ModelError when a field is missing, makes no sense, or asks for something this decoder does not compute."""
    return common(config)
