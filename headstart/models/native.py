"""A whole pass of a decoder or a draft head in one call of the kernels: what their `forward` computes, with activations in fp32.

Knows the fields of the kernels' structures (kernels/library.py) and which decoders they describe; every other one runs on torch.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from ctypes import c_int64, c_void_p, cast
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.kernels import library
from headstart.kernels.packing import KINDS, Packed
from headstart.ops.attention import Batch, KVCache, Numbers, Span
from headstart.ops.rope import attention_factor

if TYPE_CHECKING:
    from headstart.models.decoder import Decoder, ModelConfig, _Layer
    from headstart.models.head import Head

MAX_HEAD_DIM = 256
# What the kernels compute at any value. A field that is not here must have its default, so that no new one is ignored.
_COMPUTED = {
    *("vocab_size", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "eps", "max_len"),
    *("rope_theta", "rope_scaling", "tied", "attention_bias", "qkv_bias", "mlp_bias"),
}


def supports(config: ModelConfig) -> bool:
    """Whether the kernels compute this decoder."""
    plain = all(f.name in _COMPUTED or (f.default is not MISSING and getattr(config, f.name) == f.default) for f in fields(config))
    turned = config.rope_scaling is None or attention_factor(config.rope_scaling) == 1.0  # cos and sin are not weighted there
    return plain and turned and config.head_dim <= MAX_HEAD_DIM


def native_pass(model: Decoder) -> NativePass | None:
    """The native pass of a loaded decoder; None where torch computes it."""
    if not supports(model.config):
        return None
    return _native(model.config, model.dtype, (model.embed.table, model.head), model.layers, (model.norm, model.rotary.inv_freq))


def native_head(head: Head) -> NativePass | None:
    """The native pass of a loaded draft head; None where torch computes it."""
    c = head.config
    if not supports(c.layer) or head.embed.scale != 1.0:
        return None
    vectors = (head.norm, head.inv_freq, head.embed_norm, head.state_norm)
    return _native(c.layer, head.dtype, (head.embed.table, head.lm_head), [head], vectors, c.norm_before_residual)


def _native(
    c: ModelConfig, dtype: torch.dtype, tables: Seq[object], blocks: Seq[_Layer | Head], vectors: Seq[Tensor], keeps_normed: bool = False
) -> NativePass | None:
    """tables: embedding and head. vectors: the last of the structure's, in its order. None where a matrix is not packed."""
    matrices = [(b.qkv, b.out, b.gate_up, b.down) for b in blocks]
    packed = [m.struct for m in (*tables, *(m for ms in matrices for m in ms)) if isinstance(m, Packed)]
    if len(packed) < len(tables) + 4 * len(blocks):
        return None
    kept: list[Tensor] = []

    def address(vector: Tensor | None) -> int | None:
        """Where a vector lies in fp32."""
        if vector is None:
            return None
        kept.append(vector.float().contiguous())
        return kept[-1].data_ptr()

    layers = (library.Layer * len(blocks))(
        *(library.Layer(*packed[2 + 4 * i : 6 + 4 * i], address(b.input_norm), address(b.mlp_norm)) for i, b in enumerate(blocks))
    )
    sizes = (c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate)
    model = library.Model(*sizes, KINDS[dtype], c.eps, c.head_dim**-0.5, layers, *packed[:2])
    for name, vector in zip(("norm", "inv_freq", "embed_norm", "state_norm"), vectors, strict=False):
        setattr(model, name, address(vector))
    model.keeps_normed = keeps_normed
    return NativePass(model, kept)


class NativePass:
    """`forward` of one model. Holds the vectors that its structure points to; the matrices are the model's."""

    def __init__(self, model: library.Model, kept: Seq[Tensor]) -> None:
        self._model, self._kept = model, kept

    def __call__(self, batch: Batch, cache: KVCache, taps: Seq[int] = (), given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits fp32 [L, rows of the head] of the rows `batch.logit_rows`; writes the keys and values of all R rows.

        And the hidden states fp32 [R, len(taps) * hidden] that enter the layers `taps`. given: the states [R, hidden] that a head reads.
        """
        rows, spans, wanted = len(batch.ids), len(batch.spans), len(batch.wanted)
        logits = torch.empty(wanted, self._model.head.rows)
        states = torch.empty(rows, len(taps) * self._model.hidden)
        given = None if given is None else given.float().contiguous()
        whole = library.Pass(
            *(rows, spans, wanted, *map(_address, (batch.ids, batch.at, batch.places))),
            *((library.Span * spans)(*(_span(s) for s in batch.spans)), _address(batch.wanted), *cache.addresses, logits.data_ptr()),
            *(None if given is None else given.data_ptr(), len(taps), cast((c_int64 * len(taps))(*taps), c_void_p), states.data_ptr()),
        )
        library.active().call("decode", self._model, whole)
        return logits, states


def _address(numbers: Numbers) -> int:
    return numbers.buffer_info()[0]


def _span(span: Span) -> library.Span:
    base, slots = (span.places.start, None) if isinstance(span.places, slice) else (0, _address(span.places))
    return library.Span(span.rows.start, span.rows.stop - span.rows.start, span.length, base, slots)
