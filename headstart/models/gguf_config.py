"""What a GGUF file's metadata means for each architecture: a config in Hugging Face's names, and the names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.core.errors import ModelError

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Norms behind attention and MLP; the norm before the MLP then has another name.
_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Tensors that say how positions turn; they are part of the config.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")

_REQUIRED = (
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "context_length",
)

Get = Callable[..., Any]


@dataclass(frozen=True)
class Architecture:
    """How llama.cpp's converter stores a family."""

    model_type: str
    blocks: Mapping[str, str] = field(default_factory=lambda: _BLOCK)
    interleaved: bool = False  # rows of q and k are in the order in which neighbours turn together
    unit_norms: bool = False  # one is added to the weights of norms
    extra: Callable[[Get], dict[str, Any]] = lambda get: {}  # further fields of the config


def _gemma(get: Get) -> dict[str, Any]:
    heads = get("attention.head_count")
    large = get("block_count") in (
        46,
        62,
    )  # the 27B models of Gemma 2 and 3 scale scores by hidden size, llama.cpp knows them by their depth
    caps = {"attn_logit_softcapping": get("attn_logit_softcapping"), "final_logit_softcapping": get("final_logit_softcapping")}
    return {
        "query_pre_attn_scalar": get("embedding_length") // heads if large else get("attention.key_length"),
        "sliding_window": get("attention.sliding_window"),
        **{name: value for name, value in caps.items() if value is not None},
    }


def _gemma3(get: Get) -> dict[str, Any]:
    pattern = get("attention.sliding_window_pattern")
    return {
        **_gemma(get),
        "rope_local_base_freq": get("rope.freq_base_swa", 10000.0),
        **({"sliding_window_pattern": pattern} if isinstance(pattern, int) and pattern > 1 else {}),
    }


def _granite(get: Get) -> dict[str, Any]:
    return {
        "embedding_multiplier": get("embedding_scale", 1.0),
        "residual_multiplier": get("residual_scale", 1.0),
        "attention_multiplier": get("attention.scale"),
        "logits_scaling": get("logit_scale", 1.0),
    }


def _phi3(get: Get) -> dict[str, Any]:
    window = get("attention.sliding_window")
    return {
        "sliding_window": window or None,
        "original_max_position_embeddings": get("rope.scaling.original_context_length", get("context_length")),
    }


ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma2": Architecture("gemma2", _BLOCK | _AROUND, unit_norms=True, extra=_gemma),
    "gemma3": Architecture("gemma3_text", _BLOCK | _AROUND, unit_norms=True, extra=_gemma3),
    "phi3": Architecture("phi3", _BLOCK | {"ffn_up": "mlp.gate_up_proj"}, extra=_phi3),
    "olmo2": Architecture("olmo2", _BLOCK | _AROUND),
    "granite": Architecture("granite", interleaved=True, extra=_granite),
    "smollm3": Architecture("smollm3", interleaved=True),
}


def architecture_of(name: Any, file: str) -> Architecture:
    """Raises ModelError for one that no family here computes."""
    if name not in ARCHITECTURES:
        raise ModelError(f"{file}: GGUF architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def read_config(kind: Architecture, get: Get, tensors: Collection[str], factors: Mapping[str, list[float]], file: str) -> dict[str, Any]:
    """A config as config.json would hold it.

    get: a metadata value of the architecture by its name, or a default. tensors: their names in Hugging Face's words. factors: the numbers
    of `ROPE_TENSORS` that the file has. Raises ModelError when something is missing or cannot be computed here.
    """
    for key in _REQUIRED:
        if get(key) is None:
            raise ModelError(f"{file} has no metadata {key} of its architecture: it is not complete, fetch it again")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    kv_heads = get("attention.head_count_kv", heads)
    for name, value in (
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("feed_forward_length", get("feed_forward_length")),
    ):
        if isinstance(value, list):
            raise ModelError(f"{file}: {name} differs from layer to layer, which is not supported")
    if not isinstance(heads, int) or heads < 1 or not isinstance(hidden, int):
        raise ModelError(f"{file}: attention.head_count={heads!r} and embedding_length={hidden!r} make no sense: fetch it again")
    head_dim = get("attention.key_length", hidden // heads)
    if get("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{file}: values of {get('attention.value_length')} numbers and keys of {head_dim} are not supported")
    return {
        "model_type": kind.model_type,
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get("context_length"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "rope_scaling": _rope(kind, get, head_dim, factors, file),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        **kind.extra(get),
    }


def _rope(kind: Architecture, get: Get, head_dim: int, factors: Mapping[str, list[float]], file: str) -> dict[str, Any] | None:
    """The rotary parameters; None where the heads turn as a whole and unscaled."""
    rope: dict[str, Any] = {}
    turned = get("rope.dimension_count", head_dim)
    if turned != head_dim:
        if kind.interleaved or not isinstance(turned, int) or not 0 < turned < head_dim:
            raise ModelError(f"{file}: rope.dimension_count={turned} of heads with {head_dim} numbers is not supported")
        rope["partial_rotary_factor"] = turned / head_dim
    original = get("rope.scaling.original_context_length", get("context_length"))
    scaling = get("rope.scaling.type")
    if "rope_freqs.weight" in factors:  # Llama 3's stretching, one factor for each frequency
        one = factors["rope_freqs.weight"]
        rope |= {
            "rope_type": "longrope",
            "short_factor": one,
            "long_factor": one,
            "factor": 1.0,
            "original_max_position_embeddings": original,
        }
    elif "rope_factors_long.weight" in factors:
        short = factors.get("rope_factors_short.weight")
        rope |= {"rope_type": "longrope", "short_factor": short, "long_factor": factors["rope_factors_long.weight"]}
        if (attention := get("rope.scaling.attn_factor")) is not None:
            rope["attention_factor"] = attention
        rope["original_max_position_embeddings"] = original
    elif scaling in ("linear", "yarn"):
        rope |= {"rope_type": scaling, "factor": get("rope.scaling.factor"), "original_max_position_embeddings": original}
    elif scaling not in (None, "none"):
        raise ModelError(f"{file}: rope.scaling.type={scaling!r} is not supported: use the safetensors checkpoint")
    return rope or None
