"""Reading a checkpoint's config: checked numbers, and what nearly every family shares. A family's file adds what is its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig

_LONG = ("llama3", "yarn", "longrope")  # kinds of rope that know the context the model was first trained for


def common(config: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None, **own: Any) -> ModelConfig:
    """The fields that nearly every family has, `defaults` where the config leaves one out, and the family's `own`.

    Raises ModelError when a field is missing, makes no sense, or asks for something the decoder does not compute.
    """
    config = {**(defaults or {}), **{k: v for k, v in config.items() if v is not None}}
    heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
    kv_heads, head_dim = whole(config, "num_key_value_heads", heads), whole(config, "head_dim", hidden // heads)
    if heads % kv_heads:
        raise ModelError(f"num_key_value_heads={kv_heads} in the config does not divide num_attention_heads={heads}")
    rope = own.pop("rope_scaling", None) or rope_of(config)
    rotary_dim = int(head_dim * number(rope, "partial_rotary_factor", 1.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ModelError(f"head_dim={head_dim} in the config, of which {rotary_dim} turn, must be even: rotary embedding turns pairs")
    fields = {
        "vocab_size": whole(config, "vocab_size"),
        "hidden": hidden,
        "layers": whole(config, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate": whole(config, "intermediate_size"),
        "eps": number(config, "rms_norm_eps", 1e-6),
        "max_len": whole(config, "max_position_embeddings"),
        "rope_theta": number(rope if rope.get("rope_theta") else config, "rope_theta", 10000.0),
        "rope_scaling": rope or None,
        "rotary_dim": None if rotary_dim == head_dim else rotary_dim,
        "tied": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": bool(config.get("attention_bias", False)),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "activation": activation(config),
    }
    return ModelConfig(**{**fields, **own})


def activation(config: Mapping[str, Any]) -> str:
    """The function of the gated MLP in torch's words: silu, or gelu by its tanh formula."""
    names = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    field = "hidden_activation" if config.get("hidden_activation") else "hidden_act"
    act = config.get(field, "silu")
    if act not in names:
        raise ModelError(f"{field}={act!r} is not supported; supported: {', '.join(names)}")
    return names[act]


def rope_of(config: Mapping[str, Any], layers: str = "") -> dict[str, Any]:
    """The rotary parameters in transformers' newer form, of all layers or of one kind of `layers`; empty where there are none."""
    field = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"  # transformers 5, and before
    rope = config.get(field) or {}
    if layers and isinstance(rope, Mapping):
        rope = rope.get(layers) or {}
    if not isinstance(rope, Mapping):
        raise ModelError(f"{field}={rope!r} in the config must be a dictionary")
    rope = dict(rope)
    if "partial_rotary_factor" in config:
        rope.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if "long_factor" in rope:
        rope["rope_type"] = "longrope"  # older configs call it su or yarn
    if rope.get("rope_type", rope.get("type")) in _LONG:
        longest = whole(config, "max_position_embeddings")
        first = config.get("original_max_position_embeddings")
        rope.setdefault("original_max_position_embeddings", longest)
        if first:
            rope["original_max_position_embeddings"] = first
        if rope.get("factor") is None:
            rope["factor"] = longest / number(rope, "original_max_position_embeddings", longest)
    return rope


def sliding(config: Mapping[str, Any], default: tuple[bool, ...] | None = None) -> dict[str, Any]:
    """Which layers see a window only, and how wide it is: the fields `window` and `sliding`. `default` where no layer_types say."""
    layers, window = whole(config, "num_hidden_layers"), config.get("sliding_window")
    kinds = config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise ModelError(
                f"layer_types={kinds!r} in the config must name sliding_attention or full_attention for each of {layers} layers"
            )
        default = tuple(k == "sliding_attention" for k in kinds)
    if window is None or default is None or not any(default):
        return {}
    return {"window": whole(config, "sliding_window"), "sliding": default}


def whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer of the config."""
    value = config.get(name)
    if value is None:
        if default is None:
            raise ModelError(f"the config has no field {name!r}: is this a {config.get('model_type', 'decoder')} checkpoint?")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name}={value!r} in the config must be a positive integer")
    return value


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """A positive number of the config."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelError(f"{name}={value!r} in the config must be a positive number")
    return value
