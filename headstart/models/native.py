"""A whole pass of a decoder in one call of the kernels: what `Decoder.forward` computes, with activations in fp32.

Knows the fields of the kernels' structures (kernels/library.py) and which decoders they describe; every other one runs on torch.
"""

from __future__ import annotations

from ctypes import c_void_p
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.kernels import library
from headstart.kernels.packing import KINDS, Packed
from headstart.ops.attention import Batch, KVCache, Span

if TYPE_CHECKING:
    from headstart.models.decoder import Decoder, ModelConfig

MAX_HEAD_DIM = 256
# What the kernels compute at any value. A field that is not here must have its default, so that no new one is ignored.
_COMPUTED = {
    *("vocab_size", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "eps", "max_len"),
    *("rope_theta", "rope_scaling", "tied", "attention_bias", "qkv_bias", "mlp_bias"),
}


def supports(config: ModelConfig) -> bool:
    """Whether the kernels compute this decoder."""
    plain = all(f.name in _COMPUTED or (f.default is not MISSING and getattr(config, f.name) == f.default) for f in fields(config))
    return plain and config.head_dim <= MAX_HEAD_DIM


def native_pass(model: Decoder) -> NativePass | None:
    """The native pass of a loaded decoder; None where torch computes it."""
    packed = isinstance(model.head, Packed) and isinstance(model.embedding, Packed)
    return NativePass(model) if packed and supports(model.config) and model.rotary.factor == 1.0 else None


class NativePass:
    """`forward` of one decoder. Holds what its structures point to."""

    def __init__(self, model: Decoder) -> None:
        c = model.config
        self.vocab_size = c.vocab_size
        self._vectors: list[Tensor] = []
        self._layers = (library.Layer * c.layers)(
            *(
                library.Layer(
                    *(_matrix(linear) for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)),
                    *(self._vector(norm) for norm in (layer.input_norm, layer.mlp_norm)),
                )
                for layer in model.layers
            )
        )
        sizes = (c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate)
        self._model = library.Model(
            *(*sizes, KINDS[model.dtype], c.eps, c.head_dim**-0.5, self._layers),
            *(_matrix(model.embedding), _matrix(model.head)),
            *(self._vector(model.norm), self._vector(model.rotary.inv_freq)),
        )

    def _vector(self, vector: Tensor | None) -> int:
        """The address of a vector in fp32."""
        assert vector is not None  # no decoder that `supports` lets through lacks one
        self._vectors.append(vector.float().contiguous())
        return self._vectors[-1].data_ptr()

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """Logits fp32 [L, vocab_size] of the rows `batch.logit_rows`; writes the keys and values of all rows."""
        rows = len(batch.tokens)
        wanted = torch.arange(rows) if batch.logit_rows is None else batch.logit_rows
        logits = torch.empty(len(wanted), self.vocab_size)
        spans = (library.Span * len(batch.spans))(*(_span(s) for s in batch.spans))
        keys, values = ((c_void_p * len(ts))(*(t.data_ptr() for t in ts)) for ts in (cache.keys, cache.values))
        vectors = (t.data_ptr() for t in (batch.tokens, batch.positions, batch.slots))
        whole = library.Pass(rows, len(spans), len(wanted), *vectors, spans, wanted.data_ptr(), keys, values, logits.data_ptr())
        library.active().call("decode", self._model, whole)
        return logits


def _matrix(linear: object) -> library.Matrix:
    assert isinstance(linear, Packed)
    return linear.struct


def _span(span: Span) -> library.Span:
    base, slots = (span.slots.start, None) if isinstance(span.slots, slice) else (0, span.slots.data_ptr())
    return library.Span(span.rows.start, span.rows.stop - span.rows.start, span.length, base, slots)
