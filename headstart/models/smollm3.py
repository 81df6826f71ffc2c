"""SmolLM3: every fourth layer knows no positions (NoPE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig
from headstart.models.fields import common, sliding, whole

MODEL_TYPES = ("smollm3",)


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    layers, every = whole(config, "num_hidden_layers"), whole(config, "no_rope_layer_interval", 4)
    turned = config.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]  # 1 where a layer turns
    if not isinstance(turned, list) or len(turned) < layers:
        raise ModelError(f"no_rope_layers={turned!r} in the config must have a 0 or 1 for each of {layers} layers")
    unrotated = tuple(not t for t in turned[:layers])
    slide = sliding(config, unrotated) if config.get("use_sliding_window") else {}
    return common(config, defaults={"tie_word_embeddings": True, "rope_theta": 2e6}, unrotated=unrotated, **slide)
