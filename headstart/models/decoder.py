"""The decoder of the Llama family, driven by a config: embedding, L blocks of attention and gated MLP, norm, head.

Pulls its tensors one at a time from a source and packs them at once, so that loading never holds the weights twice.
Knows nothing of sequences, drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.models.native import native_pass
from headstart.ops.attention import Batch, KVCache, attend
from headstart.ops.linear import Linear, Packed, Table, embed, pack, table_of
from headstart.ops.quant import Quantised, Weight, join
from headstart.ops.rope import frequencies, rotate, rotation

# A tensor by its name in the checkpoint, in the dtype and on the device of the model; a matrix may be quantised.
Source = Callable[[str], Weight]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, read from a checkpoint's config by the file of its family."""

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


@dataclass
class _Layer:
    input_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A loaded model. `forward` is a function of its arguments and the cache only."""

    parameters: int = 0  # how many weights were loaded, and their bytes; set by the loader
    weight_bytes: int = 0

    def __init__(self, config: ModelConfig, source: Source, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        table, hidden = (config.vocab_size, config.hidden), (config.hidden,)
        # The largest tensors first, while there is most room for what reading them needs.
        embedding = _matrix(source, "model.embed_tokens.weight", table)
        self.head = pack(embedding if config.tied else _matrix(source, "lm_head.weight", table), None, dtype)
        # A packed head is a table too: where embedding and head are one, no second copy is kept.
        self.embedding: Table = self.head if config.tied and isinstance(self.head, Packed) else table_of(embedding, dtype)
        self.norm = _take(source, "model.norm.weight", hidden)
        self.layers = [self._load_layer(source, i) for i in range(config.layers)]
        self.inv_freq = frequencies(config.head_dim, config.rope_theta, config.rope_scaling).to(device)
        self.native = native_pass(self)

    def _load_layer(self, source: Source, i: int) -> _Layer:
        c, prefix = self.config, f"model.layers.{i}."
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim

        def fused(block: str, outs: Mapping[str, int], width: int, bias: bool) -> Linear:
            """One product for several: their rows one under the other."""
            weight = join([_matrix(source, f"{prefix}{block}.{n}.weight", (rows, width)) for n, rows in outs.items()])
            biases = [_take(source, f"{prefix}{block}.{n}.bias", (rows,)) for n, rows in outs.items()] if bias else None
            return pack(weight, torch.cat(biases) if biases else None, self.dtype)

        return _Layer(
            input_norm=_take(source, prefix + "input_layernorm.weight", (c.hidden,)),
            qkv=fused("self_attn", {"q_proj": queries, "k_proj": keys, "v_proj": keys}, c.hidden, c.attention_bias),
            out=fused("self_attn", {"o_proj": c.hidden}, queries, c.attention_bias),
            mlp_norm=_take(source, prefix + "post_attention_layernorm.weight", (c.hidden,)),
            gate_up=fused("mlp", {"gate_proj": c.intermediate, "up_proj": c.intermediate}, c.hidden, c.mlp_bias),
            down=fused("mlp", {"down_proj": c.hidden}, c.intermediate, c.mlp_bias),
        )

    def new_cache(self, slots: int) -> KVCache:
        """A cache of keys and values with room for `slots` tokens."""
        c = self.config
        return KVCache(c.layers, slots, c.kv_heads, c.head_dim, self.dtype, self.device)

    @property
    def kv_bytes_per_token(self) -> int:
        c = self.config
        return 2 * c.layers * c.kv_heads * c.head_dim * self.dtype.itemsize

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Logits [L, vocab_size] of the rows `batch.logit_rows`; writes the keys and values of all R rows."""
        if self.native is not None:
            return self.native(batch, cache)
        c = self.config
        x = embed(batch.tokens, self.embedding, self.dtype)  # [R, hidden]
        cos, sin = rotation(batch.positions, self.inv_freq, self.dtype)
        turned = c.heads + c.kv_heads
        for i, layer in enumerate(self.layers):
            h = F.rms_norm(x, (c.hidden,), layer.input_norm, c.eps)
            qkv = layer.qkv(h).view(-1, turned + c.kv_heads, c.head_dim)
            qk = rotate(qkv[:, :turned], cos, sin)
            cache.write(i, batch.slots, qk[:, c.heads :], qkv[:, turned:])
            x = x + layer.out(attend(qk[:, : c.heads], cache, i, batch))
            gate, up = layer.gate_up(F.rms_norm(x, (c.hidden,), layer.mlp_norm, c.eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        return self.head(F.rms_norm(x, (c.hidden,), self.norm, c.eps))


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
