"""The decoder of the Llama family and its relatives, driven by a config: embedding, L blocks of attention and gated MLP, norm, head.

Pulls its tensors one at a time from a source and packs them at once, so that loading never holds the weights twice.
Knows nothing of sequences, drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.core.memory import grouped
from headstart.models.native import native_pass
from headstart.ops.attention import Batch, KVCache, attend
from headstart.ops.linear import Embedding, Linear, Packed, pack, table_of
from headstart.ops.quant import Quantised, Weight, join
from headstart.ops.rope import attention_factor, frequencies, rotate, rotation

# A tensor by its name in the checkpoint, in the dtype and on the device of the model; a matrix may be quantised.
Source = Callable[[str], Weight]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, read from a checkpoint's config by the file of its family.

    What has a default is what only some families have; the defaults together are Llama.
    """

    vocab_size: int  # rows of the embedding, padding included
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    max_len: int
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qkv_bias: bool = False  # of q, k and v, but not of the product after attention
    qk_norm: str = ""  # "head": a norm over each head of q and k; "all": over all heads of q, and of k
    norms: str = "before"  # where each block has its norms: "before" it, "after" it, or "around" it
    unit_norms: bool = False  # weights of norms are stored as their difference from one
    activation: str = "silu"  # or "gelu_tanh"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what a block adds
    logit_scale: float = 1.0
    attention_scale: float | None = None  # of scores; None: head_dim ** -0.5
    attention_cap: float | None = None  # scores s become cap * tanh(s / cap)
    logit_cap: float | None = None
    rotary_dim: int | None = None  # how much of each head turns; None: all of it
    unrotated: tuple[bool, ...] = ()  # layers that know no positions; empty: none
    window: int | None = None  # a row of a sliding layer sees so many keys, its own among them
    sliding: tuple[bool, ...] = ()  # layers that see a window only; empty: none
    local_rope: Mapping[str, Any] | None = None  # rotary parameters of sliding layers, where they have their own


# Names in the checkpoint of the norms before and after attention, before and after the MLP.
_NORMS: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "before": ("input_layernorm", None, "post_attention_layernorm", None),
    "after": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "around": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_tanh": partial(F.gelu, approximate="tanh")}


@dataclass
class _Layer:
    """One block. A norm is None where the family has none there."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    input_norm: Tensor | None
    attn_norm: Tensor | None
    mlp_norm: Tensor | None
    down_norm: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    sliding: bool
    rotated: bool


@dataclass
class _Rotary:
    """How heads turn: the inverse frequencies, and the factor that long-context variants put on cos and sin."""

    inv_freq: Tensor
    factor: float


class Decoder:
    """A loaded model. `forward` is a function of its arguments and the cache only."""

    parameters: int = 0  # how many weights were loaded, and their bytes; set by the loader
    weight_bytes: int = 0

    def __init__(self, config: ModelConfig, source: Source, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        table = (config.vocab_size, config.hidden)
        # The largest tensors first, while there is most room for what reading them needs.
        embedding = _matrix(source, "model.embed_tokens.weight", table)
        self.head = pack(embedding if config.tied else _matrix(source, "lm_head.weight", table), None, dtype)
        # A packed head is a table too: where embedding and head are one, no second copy is kept.
        shared = self.head if config.tied and isinstance(self.head, Packed) else table_of(embedding, dtype)
        self.embed = Embedding(shared, dtype, config.embedding_scale)
        self.norm = self._norm_weight(source, "model.norm.weight", config.hidden)
        self.layers = [self._load_layer(source, i) for i in range(config.layers)]
        self.rotary = self._rotary({"rope_theta": config.rope_theta, **(config.rope_scaling or {})})
        self.local_rotary = self._rotary(config.local_rope) if config.local_rope else self.rotary
        self.activation = _ACTIVATIONS[config.activation]
        self.native = native_pass(self)

    def _rotary(self, rope: Mapping[str, Any]) -> _Rotary:
        c = self.config
        inv_freq = frequencies(c.rotary_dim or c.head_dim, rope["rope_theta"], rope, c.max_len)
        return _Rotary(inv_freq.to(self.device), attention_factor(rope))

    def _load_layer(self, source: Source, i: int) -> _Layer:
        c, prefix = self.config, f"model.layers.{i}."
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim

        def fused(block: str, outs: Mapping[str, int], width: int, bias: bool) -> Linear:
            """One product for several: their rows one under the other."""
            weight = join([_matrix(source, f"{prefix}{block}.{n}.weight", (rows, width)) for n, rows in outs.items()])
            biases = [_take(source, f"{prefix}{block}.{n}.bias", (rows,)) for n, rows in outs.items()] if bias else None
            return pack(weight, torch.cat(biases) if biases else None, self.dtype)

        norms = [None if n is None else self._norm_weight(source, f"{prefix}{n}.weight", c.hidden) for n in _NORMS[c.norms]]
        qk: list[Tensor | None] = [None, None]
        if c.qk_norm:
            sizes = (queries, keys) if c.qk_norm == "all" else (c.head_dim, c.head_dim)
            names = ("self_attn.q_norm", "self_attn.k_norm")
            qk = [self._norm_weight(source, f"{prefix}{n}.weight", size) for n, size in zip(names, sizes, strict=True)]
        biased = c.attention_bias or c.qkv_bias
        return _Layer(
            qkv=fused("self_attn", {"q_proj": queries, "k_proj": keys, "v_proj": keys}, c.hidden, biased),
            out=fused("self_attn", {"o_proj": c.hidden}, queries, c.attention_bias),
            gate_up=fused("mlp", {"gate_proj": c.intermediate, "up_proj": c.intermediate}, c.hidden, c.mlp_bias),
            down=fused("mlp", {"down_proj": c.hidden}, c.intermediate, c.mlp_bias),
            input_norm=norms[0],
            attn_norm=norms[1],
            mlp_norm=norms[2],
            down_norm=norms[3],
            q_norm=qk[0],
            k_norm=qk[1],
            sliding=bool(c.sliding) and c.sliding[i],
            rotated=not (c.unrotated and c.unrotated[i]),
        )

    def _norm_weight(self, source: Source, name: str, size: int) -> Tensor:
        """The weight of a norm. One plus a stored difference is kept in fp32 at least: in bfloat16 it would lose its last bits."""
        weight = _take(source, name, (size,))
        return weight.to(torch.promote_types(self.dtype, torch.float32)) + 1 if self.config.unit_norms else weight

    def new_cache(self, slots: int, local_slots: int | None = None) -> KVCache:
        """A cache of keys and values with room for `slots` tokens, in sliding layers for `local_slots` if that is given."""
        c = self.config
        local = slots if local_slots is None else local_slots
        return KVCache(
            c.layers, [local if layer.sliding else slots for layer in self.layers], c.kv_heads, c.head_dim, self.dtype, self.device
        )

    @property
    def window(self) -> int | None:
        """How many keys a row of a sliding layer sees; None where no layer slides."""
        return self.config.window

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return self.config.layers * self._layer_bytes

    @property
    def local_kv_bytes_per_token(self) -> int:
        """The part of `kv_bytes_per_token` that sliding layers have."""
        return sum(self.config.sliding) * self._layer_bytes

    @property
    def _layer_bytes(self) -> int:
        return grouped(self.config.kv_heads, self.config.head_dim) * self.dtype.itemsize

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Logits [L, vocab_size] of the rows `batch.logit_rows`; writes the keys and values of all R rows."""
        return self.forward_with_states(batch, cache, ())[0]

    def forward_with_states(self, batch: Batch, cache: KVCache, taps: Seq[int]) -> tuple[Tensor, Tensor]:
        """The same logits, and the hidden states [R, len(taps) * hidden] that enter these layers.

        Those that leave the last layer are number `layers`. The native pass gives fp32, torch the dtype of the model.
        """
        if self.native is not None:
            return self.native(batch, cache, taps)
        return self._compute(batch, cache, taps)

    @torch.inference_mode()
    def _compute(self, batch: Batch, cache: KVCache, taps: Seq[int]) -> tuple[Tensor, Tensor]:
        """`forward_with_states` on torch."""
        c, seen = self.config, dict.fromkeys(taps, torch.empty(0))
        x = self.embed(batch.tokens)  # [R, hidden]
        turns = self._turns(batch.positions)
        for i, layer in enumerate(self.layers):
            if i in seen:
                seen[i] = x
            x = self._add(x, self._attention(i, layer, self._norm(x, layer.input_norm), batch, cache, turns), layer.attn_norm)
            gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, -1)
            x = self._add(x, layer.down(self.activation(gate) * up), layer.down_norm)
        if c.layers in seen:
            seen[c.layers] = x
        states = torch.cat([seen[i] for i in taps], -1) if taps else x[:, :0]
        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        logits = self.head(self._norm(x, self.norm))
        if c.logit_scale != 1.0:
            logits = logits * c.logit_scale
        if c.logit_cap is not None:
            logits = torch.tanh(logits / c.logit_cap) * c.logit_cap
        return logits, states

    def _turns(self, positions: Tensor) -> dict[bool, tuple[Tensor, Tensor]]:
        """cos and sin of the rows, for sliding layers (True) and for the others."""
        kinds = {False: self.rotary} | ({True: self.local_rotary} if self.config.sliding else {})
        made = {id(r): rotation(positions, r.inv_freq, self.dtype, r.factor) for r in kinds.values()}
        return {kind: made[id(r)] for kind, r in kinds.items()}

    def _attention(
        self, i: int, layer: _Layer, h: Tensor, batch: Batch, cache: KVCache, turns: Mapping[bool, tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Attention of layer i over its keys, those of these rows included; [R, hidden]."""
        c = self.config
        turned = c.heads + c.kv_heads
        qkv = layer.qkv(h).view(-1, turned + c.kv_heads, c.head_dim)
        qk = qkv[:, :turned]
        if layer.q_norm is not None:
            shape = (len(qkv), -1) if c.qk_norm == "all" else (len(qkv), -1, c.head_dim)
            parts = [(qk[:, : c.heads], layer.q_norm), (qk[:, c.heads :], layer.k_norm)]
            qk = torch.cat([self._norm(p.reshape(shape), w).view(len(qkv), -1, c.head_dim) for p, w in parts], 1)
        if layer.rotated:
            qk = rotate(qk, *turns[layer.sliding])
        layout = batch.local if layer.sliding and batch.local is not None else batch
        cache.write(i, layout.slots, qk[:, c.heads :], qkv[:, turned:])
        return layer.out(attend(qk[:, : c.heads], cache, i, layout, c.attention_scale, c.attention_cap))

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """The root-mean-square norm, computed in the wider of the two dtypes; x itself where there is none."""
        if weight is None:
            return x
        if weight.dtype is x.dtype:
            return F.rms_norm(x, weight.shape, weight, self.config.eps)
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, self.config.eps).to(x.dtype)

    def _add(self, x: Tensor, h: Tensor, norm: Tensor | None) -> Tensor:
        """The residual sum, after the norm and the scale that some families put on what a block adds."""
        h = self._norm(h, norm)
        return x + h if self.config.residual_scale == 1.0 else x + h * self.config.residual_scale


def _take(source: Source, name: str, shape: tuple[int]) -> Tensor:
    """A vector of the length the config says. Raises ModelError as `_matrix` does."""
    vector = _shaped(source, name, shape)
    assert not isinstance(vector, Quantised)
    return vector


def _matrix(source: Source, name: str, shape: tuple[int, int]) -> Weight:
    """A matrix of the shape the config says. Raises ModelError for another: found here, not at the first request."""
    return _shaped(source, name, shape)


def _shaped(source: Source, name: str, shape: tuple[int, ...]) -> Weight:
    tensor = source(name)
    if tuple(tensor.shape) != shape:
        raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}, the config says {list(shape)}: they are of different models")
    return tensor
