"""From a config to what matters for memory and speed: parameters, and what each layer caches. One function for each kind of block.

The counts are those of the checkpoint: tests hold them against published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.core.errors import ModelError, nearest
from headstart.core.memory import LayerCache, grouped, latent

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Experts:
    """The routed experts of a model, all layers together: `chosen` of `count` run for a token, each of `parameters` in all layers."""

    count: int
    chosen: int
    parameters: int

    def read(self, rows: int) -> float:
        """Expected parameters of experts that a pass over `rows` reads: those that any row chose, were the choices independent."""
        return self.count * (1 - (1 - self.chosen / self.count) ** rows) * self.parameters


@dataclass(frozen=True)
class Shape:
    """A model as memory and bandwidth see it."""

    name: str
    family: str
    parameters: int
    embedding: int  # of them, the input table where it is not the head too: one row of it is read for a token
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    max_len: int
    cache: tuple[LayerCache, ...]
    attention: str  # in words
    experts: Experts | None = None
    split_cache: bool = True  # whether tensor parallelism can give each device some of the KV heads

    def read(self, rows: int) -> float:
        """Parameters that a pass over `rows` reads."""
        dense = self.parameters - self.embedding
        if self.experts is None:
            return dense
        return dense - self.experts.count * self.experts.parameters + self.experts.read(rows)

    @property
    def active(self) -> int:
        """Parameters that one token is multiplied by."""
        return round(self.read(1))


FAMILIES = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma3_text", "phi3", "smollm3", "olmo2", "granite",
    "deepseek_v2", "deepseek_v3",
)  # fmt: skip

# What transformers assumes where a config leaves it out; Gemma 3 configs do.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True},
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128},
}


def read_shape(name: str, config: Config) -> Shape:
    """The shape of a model. Raises ModelError when its family is not known, or a field is missing or makes no sense."""
    config = _text_part(config)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{name}: model_type {family!r} is not one that plan can count: {nearest(str(family), FAMILIES)}")
    config = {**_DEFAULTS.get(str(family), {}), **{k: v for k, v in config.items() if v is not None}}
    c = _Fields(name, config)
    hidden, layers, heads = c.whole("hidden_size"), c.whole("num_hidden_layers"), c.whole("num_attention_heads")
    kv_heads = c.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{name}: num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}")
    if "deepseek" in family:
        attention, kept, words = _latent(c, hidden, heads)
        cache = (LayerCache(kept),) * layers
    else:
        attention, cache, words = _grouped(c, str(family), hidden, layers, heads, kv_heads)
    mlp, experts = _mlp(c, str(family), hidden, layers)
    norms = layers * (4 if "gemma" in family else 2) * hidden + hidden
    table, tied = c.whole("vocab_size") * hidden, bool(config.get("tie_word_embeddings", False))
    return Shape(
        name=name,
        family=str(family),
        parameters=layers * attention + mlp + norms + table * (1 if tied else 2),
        embedding=0 if tied else table,
        vocab=c.whole("vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=c.whole("intermediate_size"),
        max_len=c.whole("max_position_embeddings"),
        cache=cache,
        attention=words,
        experts=experts,
        split_cache="deepseek" not in family,
    )


def _text_part(config: Config) -> Config:
    """Of a model that also takes images, the part that writes text."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    family = text.get("model_type") or {"gemma3": "gemma3_text"}.get(str(config.get("model_type")))
    return {**text, "model_type": family}


class _Fields:
    """Fields of a config, checked as they are read."""

    def __init__(self, name: str, config: Config) -> None:
        self.name, self.config = name, config

    def whole(self, field: str, default: int | None = None) -> int:
        """A positive integer. Raises ModelError."""
        value = self.config.get(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 40:
            what = "is missing" if value is None else f"is {value!r}, not a positive integer"
            raise ModelError(f"{self.name}: {field} {what} in its config: is the file complete?")
        return value


def _grouped(c: _Fields, family: str, hidden: int, layers: int, heads: int, kv_heads: int) -> tuple[int, tuple[LayerCache, ...], str]:
    """Grouped-query attention: parameters of a layer, what each layer keeps, in words."""
    dim = c.whole("head_dim", hidden // heads)
    wide, narrow = heads * dim, kv_heads * dim
    bias = wide + 2 * narrow if family == "qwen2" else wide + 2 * narrow + hidden if c.config.get("attention_bias") else 0
    norms = 2 * dim if family in ("qwen3", "qwen3_moe", "gemma3_text") else wide + narrow if family == "olmo2" else 0
    parameters = hidden * (wide + 2 * narrow) + wide * hidden + bias + norms
    windows = _windows(c, family, layers)
    cache = tuple(LayerCache(grouped(kv_heads, dim), w) for w in windows)
    kind = "grouped-query" if 1 < kv_heads < heads else "multi-query" if kv_heads < heads else "multi-head"
    words = f"{kind} attention, {heads} heads, {kv_heads} of keys and values, {dim} wide"
    local = sum(w is not None for w in windows)
    if local:
        words += f"; {local} of {layers} layers look back {next(w for w in windows if w):,} tokens only"
    return parameters, cache, words


def _windows(c: _Fields, family: str, layers: int) -> list[int | None]:
    """How far each layer looks back, None for all the way."""
    if not c.config.get("sliding_window") or not c.config.get("use_sliding_window", not family.startswith("qwen")):
        return [None] * layers
    window, kinds = c.whole("sliding_window"), c.config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        local = [kind == "sliding_attention" for kind in kinds]
    elif family == "gemma2":
        local = [i % 2 == 0 for i in range(layers)]
    elif family == "gemma3_text":
        local = [(i + 1) % c.whole("sliding_window_pattern") != 0 for i in range(layers)]
    elif family.startswith("qwen"):
        local = [i >= c.whole("max_window_layers", layers) for i in range(layers)]
    else:
        local = [True] * layers
    return [window if here else None for here in local]


def _latent(c: _Fields, hidden: int, heads: int) -> tuple[int, int, str]:
    """Multi-head latent attention (DeepSeek-V2, 2405.04434): parameters of a layer, numbers kept a token, in words."""
    rank, rope = c.whole("kv_lora_rank"), c.whole("qk_rope_head_dim")
    plain, value = c.whole("qk_nope_head_dim"), c.whole("v_head_dim")
    wide = heads * (plain + rope)
    query_rank = c.config.get("q_lora_rank") and c.whole("q_lora_rank")
    queries = hidden * query_rank + query_rank + query_rank * wide if query_rank else hidden * wide
    keys = hidden * (rank + rope) + rank + rank * heads * (plain + value)
    words = f"latent attention, {heads} heads share {rank} + {rope} numbers a token"
    return queries + keys + heads * value * hidden, latent(rank, rope), words


def _mlp(c: _Fields, family: str, hidden: int, layers: int) -> tuple[int, Experts | None]:
    """Gated MLPs of all layers, dense or of experts with their routers: parameters, and the experts."""
    wide = c.whole("intermediate_size")
    count_field = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}.get(family, "n_routed_experts")
    if family not in ("mixtral", "qwen3_moe") and not c.config.get(count_field):
        bias = 2 * wide + hidden if c.config.get("mlp_bias") else 0
        return layers * (3 * hidden * wide + bias), None
    count, chosen = c.whole(count_field), c.whole("num_experts_per_tok")
    each = 3 * hidden * (wide if family == "mixtral" else c.whole("moe_intermediate_size"))
    only, step = c.config.get("mlp_only_layers") or (), int(c.config.get("decoder_sparse_step") or 1)
    first = int(c.config.get("first_k_dense_replace") or 0)
    dense = sum(i < first or i in only or (i + 1) % step != 0 for i in range(layers))
    sparse = layers - dense
    router = hidden * count + (count if family == "deepseek_v3" else 0)
    shared = int(c.config.get("n_shared_experts") or 0) * each
    if chosen > count or sparse < 1:
        raise ModelError(f"{c.name}: {chosen} of {count} experts in {sparse} of {layers} layers make no sense: is its config complete?")
    return dense * 3 * hidden * wide + sparse * (router + shared + count * each), Experts(count, chosen, sparse * each)
