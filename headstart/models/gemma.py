"""Gemma 2 and the text models of Gemma 3: norms around each block, scaled embeddings, sliding layers between global ones.

Gemma 2 caps scores and logits; Gemma 3 norms the heads instead, and turns its sliding layers by a base of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig
from headstart.models.fields import common, number, rope_of, sliding, whole

MODEL_TYPES = ("gemma2", "gemma3_text")

_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256}


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `llama.read_config`."""
    if config.get("use_bidirectional_attention"):
        raise ModelError("use_bidirectional_attention is set: this model is an encoder and does not generate")
    third = config.get("model_type") == "gemma3_text"
    every = config.get("sliding_window_pattern") or 6 if third else 2  # of so many layers the last is global
    rule = tuple(bool((i + 1) % every) for i in range(whole(config, "num_hidden_layers")))
    own: dict[str, Any] = sliding({"sliding_window": 4096, **config}, rule)
    if third:
        own |= _ropes(config) | {"qk_norm": "head"}
    given = {**_DEFAULTS, **({} if third else {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}), **config}
    return common(
        config,
        defaults=_DEFAULTS,
        norms="around",
        unit_norms=True,
        embedding_scale=whole(config, "hidden_size") ** 0.5,
        attention_scale=number(given, "query_pre_attn_scalar", 256) ** -0.5,
        attention_cap=_cap(given, "attn_logit_softcapping"),
        logit_cap=_cap(given, "final_logit_softcapping"),
        **own,
    )


def _ropes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of the global layers, and of the sliding ones."""
    nested = any(isinstance(v, Mapping) for v in (config.get("rope_parameters") or {}).values())
    whole_text = rope_of(config, "full_attention" if nested else "")
    whole_text.setdefault("rope_theta", config.get("rope_theta") or 1e6)
    local = rope_of(config, "sliding_attention") if nested else {}
    local.setdefault("rope_theta", config.get("rope_local_base_freq") or 1e4)
    return {"rope_scaling": whole_text, "local_rope": local}


def _cap(config: Mapping[str, Any], name: str) -> float | None:
    return None if config.get(name) is None else number(config, name, 1.0)
