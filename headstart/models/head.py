"""A feature-level draft head: one decoder layer on the target's hidden states and the embedding of the token after them.

After EAGLE-3 (Li et al. 2503.01840), in the layout of the speculators library that vLLM loads. At position p it reads what the target
computed there and the token at p + 1, and predicts the token at p + 2; the state it ends with stands in for what the target
would compute at p + 1. Its vocabulary is a part of the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.models.decoder import ModelConfig, Source
from headstart.models.llama import read_config as read_llama
from headstart.models.native import native_head
from headstart.ops.attention import Batch, KVCache, attend
from headstart.ops.linear import Embedding, pack
from headstart.ops.quant import join
from headstart.ops.rope import frequencies, rotate, rotation


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a head. `taps`: the layers of the target whose input it reads; their number for what leaves the last."""

    layer: ModelConfig  # its `vocab_size` is the target's
    taps: tuple[int, ...]
    draft_vocab: int
    target_hidden: int
    norm_before_residual: bool
    norm_output: bool = False  # whether the state handed on is the normed one


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a head."""
    return "speculators_model_type" in config


def read_head_config(config: Mapping[str, Any], target_layers: int) -> HeadConfig:
    """From the config.json of a speculators checkpoint. Raises ModelError for what this head does not compute."""
    kind = config.get("speculators_model_type")
    if kind != "eagle3":
        raise ModelError(f"speculators_model_type={kind!r} is not supported: only 'eagle3' heads are")
    inner = config.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise ModelError("the head's config has no transformer_layer_config: is this a speculators checkpoint?")
    if inner.get("model_type", "llama") != "llama":
        raise ModelError(f"a head with layers of model_type {inner['model_type']!r} is not supported: only 'llama'")
    for name in ("norm_before_fc", "fc_norm"):
        if config.get(name):
            raise ModelError(f"{name}=true in the head's config is not supported")
    layer = read_llama(inner)
    if layer.layers != 1:
        raise ModelError(f"a head of {layer.layers} layers is not supported: one layer is")
    taps = config.get("eagle_aux_hidden_state_layer_ids") or (2, target_layers // 2, target_layers - 3)
    if not all(isinstance(i, int) and 0 <= i <= target_layers for i in taps) or list(taps) != sorted(set(taps)):
        raise ModelError(f"eagle_aux_hidden_state_layer_ids={list(taps)} must rise from 0 to at most the target's {target_layers} layers")
    return HeadConfig(
        layer=layer,
        taps=tuple(taps),
        draft_vocab=config.get("draft_vocab_size") or layer.vocab_size,
        target_hidden=config.get("target_hidden_size") or layer.hidden,
        norm_before_residual=bool(config.get("norm_before_residual", True)),
        norm_output=bool(config.get("norm_output", False)),
    )


class Head:
    """A loaded head. `forward` is a function of its arguments and the cache only. `ids` [draft_vocab]: what its logits stand for."""

    def __init__(
        self,
        config: HeadConfig,
        source: Source,
        ids: Tensor,
        embed: Embedding,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.ids, self.embed, self.dtype, self.device = config, ids, embed, dtype, device
        self.taps = config.taps
        c = config.layer

        def weight(name: str, *shape: int) -> Any:
            tensor = source(name)
            if tuple(tensor.shape) != shape:
                raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}, the config says {list(shape)}: two heads are mixed")
            return tensor

        if tuple(embed.table.shape) != (c.vocab_size, c.hidden):
            raise ModelError(f"the head reads embeddings {[c.vocab_size, c.hidden]}, those it shares are {list(embed.table.shape)}")
        queries, keys, prefix = c.heads * c.head_dim, c.kv_heads * c.head_dim, "layers.0."
        qkv = [weight(f"{prefix}self_attn.{n}_proj.weight", rows, 2 * c.hidden) for n, rows in (("q", queries), ("k", keys), ("v", keys))]
        gate_up = [weight(f"{prefix}mlp.{n}_proj.weight", c.intermediate, c.hidden) for n in ("gate", "up")]
        self.fc = pack(weight("fc.weight", c.hidden, len(config.taps) * config.target_hidden), None, dtype)
        self.qkv, self.gate_up = pack(join(qkv), None, dtype), pack(join(gate_up), None, dtype)
        self.out = pack(weight(f"{prefix}self_attn.o_proj.weight", c.hidden, queries), None, dtype)
        self.down = pack(weight(f"{prefix}mlp.down_proj.weight", c.hidden, c.intermediate), None, dtype)
        self.lm_head = pack(weight("lm_head.weight", config.draft_vocab, c.hidden), None, dtype)
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        self.embed_norm, self.state_norm, self.mlp_norm = (weight(f"{prefix}{n}.weight", c.hidden) for n in norms)
        self.norm = weight("norm.weight", c.hidden)
        self.input_norm = None  # the two above are in its place
        self.inv_freq = frequencies(c.head_dim, c.rope_theta, c.rope_scaling).to(device)
        self.native = native_head(self)

    def new_cache(self, slots: int) -> KVCache:
        """A cache of keys and values with room for `slots` tokens."""
        c = self.config.layer
        return KVCache(1, slots, c.kv_heads, c.head_dim, self.dtype, self.device)

    @property
    def kv_bytes_per_token(self) -> int:
        c = self.config.layer
        return 2 * c.kv_heads * c.head_dim * self.dtype.itemsize

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [R, len(taps) * target_hidden] as one state each [R, hidden]."""
        return self.fc(states if self.native else states.to(self.dtype))

    def forward(self, batch: Batch, states: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Logits [L, draft_vocab] and the states [L, hidden] handed on, of the rows `batch.logit_rows`.

        `batch.tokens` are the tokens after the positions, `states` [R, hidden] those at the positions.
        """
        if self.native is not None:
            logits, x = self.native(batch, cache, (1,), states)
            x = x if batch.logit_rows is None else x[batch.logit_rows]
            return logits, self._norm(x, self.norm.float()) if self.config.norm_output else x
        c, norm = self.config.layer, self._norm
        normed = norm(states, self.state_norm)
        x = normed if self.config.norm_before_residual else states
        h = torch.cat((norm(self.embed(batch.tokens), self.embed_norm), normed), -1)
        turned = c.heads + c.kv_heads
        qkv = self.qkv(h).view(-1, turned + c.kv_heads, c.head_dim)
        qk = rotate(qkv[:, :turned], *rotation(batch.positions, self.inv_freq, self.dtype))
        cache.write(0, batch.slots, qk[:, c.heads :], qkv[:, turned:])
        x = x + self.out(attend(qk[:, : c.heads], cache, 0, batch))
        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        gate, up = self.gate_up(norm(x, self.mlp_norm)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * up)
        last = norm(x, self.norm)
        return self.lm_head(last), last if self.config.norm_output else x

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.layer.eps)
