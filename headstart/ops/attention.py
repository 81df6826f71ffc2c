"""Paged attention: the layout of one pass, the cache of keys and values, and scores over it.

Rows of several sequences lie one after another. Each sequence is a `Span`: its rows, and where the keys of its first
`length` tokens lie. Key lengths are explicit, so what a rejected draft left behind them is never read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from ctypes import Array, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to this many rows, the query heads that share a key head are folded into rows of one product: fewer, larger products.
FOLD_ROWS = 32

# int64, "q". Of one row there are so few that making tensors of them took longer than choosing its token.
Numbers: TypeAlias = "array[int]"


@dataclass
class Span:
    """Rows `rows` of the pass belong to one sequence; the last `length` keys up to its last row lie at `places`."""

    rows: slice
    length: int  # all of them, or for layers with a window as many as one of these rows may see
    places: slice | Numbers  # a slice where the blocks happen to be adjacent: then keys are read in place
    dtype: torch.dtype
    device: torch.device
    window: int | None = None

    @cached_property
    def slots(self) -> slice | Tensor:
        """`places` as an index of torch."""
        return self.places if isinstance(self.places, slice) else torch.tensor(self.places.tolist(), device=self.device)

    @cached_property
    def mask(self) -> Tensor | None:
        """[rows, length] additive; None where every row sees every key."""
        return causal_mask(self.rows.stop - self.rows.start, self.length, self.dtype, self.device, self.window)


@dataclass
class Layout:
    """Where keys lie in one pass: the slots [R] of those that it writes, and what each sequence may see."""

    places: Numbers
    spans: list[Span]
    device: torch.device

    @cached_property
    def slots(self) -> Tensor:
        return self._tensor(self.places)

    def _tensor(self, numbers: Numbers) -> Tensor:
        return torch.tensor(numbers.tolist(), dtype=torch.int64, device=self.device)


@dataclass
class Batch(Layout):
    """One pass: R rows, in the numbers that the kernels read. The tensors of the same are made when torch asks for them."""

    ids: Numbers  # [R]: the tokens
    at: Numbers  # [R]: their positions
    wanted: Numbers  # [L]: the rows whose logits are wanted, rising
    local: Layout | None = None  # for layers that see a window only, where the model has such

    @cached_property
    def tokens(self) -> Tensor:
        return self._tensor(self.ids)

    @cached_property
    def positions(self) -> Tensor:
        return self._tensor(self.at)

    @cached_property
    def logit_rows(self) -> Tensor | None:
        """`wanted`, or None where that is every row."""
        return None if len(self.wanted) == len(self.ids) else self._tensor(self.wanted)


class KVCache:
    """Keys and values of one model, [layers][slots, kv_heads, head_dim]. Slots are not cleared: lengths guard them.

    slots: of every layer, or one number for each.
    """

    def __init__(self, layers: int, slots: int | Seq[int], kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        counts = [slots] * layers if isinstance(slots, int) else slots
        self.keys, self.values = ([torch.empty((n, kv_heads, head_dim), dtype=dtype, device=device) for n in counts] for _ in range(2))

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [R, kv_heads, head_dim] at `slots` [R]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    @cached_property
    def addresses(self) -> tuple[Array[c_void_p], Array[c_void_p]]:
        """Where the keys and the values of each layer begin, for the kernels."""
        keys, values = ((c_void_p * len(ts))(*(t.data_ptr() for t in ts)) for ts in (self.keys, self.values))
        return keys, values

    def read(self, layer: int, span: Span) -> tuple[Tensor, Tensor]:
        """Keys and values [length, kv_heads, head_dim] of one sequence."""
        k, v = self.keys[layer], self.values[layer]
        if isinstance(span.slots, slice):
            return k[span.slots], v[span.slots]
        return k.index_select(0, span.slots), v.index_select(0, span.slots)


def slot_range(table: Seq[int], block_size: int, start: int, stop: int) -> slice | Numbers:
    """The slots of positions start..stop-1 of a block table: a slice when the blocks are adjacent, else each of them."""
    first, last = start // block_size, (stop - 1) // block_size
    blocks = table[first : last + 1]
    if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
        base = (blocks[0] - first) * block_size
        return slice(base + start, base + stop)
    slots = array("q")
    for block in blocks:
        slots.extend(range(block * block_size, (block + 1) * block_size))
    return slots[start - first * block_size : stop - first * block_size]


def causal_mask(rows: int, length: int, dtype: torch.dtype, device: torch.device, window: int | None = None) -> Tensor | None:
    """Additive mask [rows, length] that aligns the last row with the last key; None for a single row that sees them all.

    With a window, a row sees so many keys, its own included.
    """
    if rows == 1 and (window is None or length <= window):
        return None
    hidden = torch.ones(rows, length, dtype=torch.bool, device=device).triu_(length - rows + 1)
    if window is not None:
        hidden |= torch.ones_like(hidden).tril_(length - rows - window)
    return torch.zeros(rows, length, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def attend(q: Tensor, cache: KVCache, layer: int, layout: Layout | Batch, scale: float | None = None, cap: float | None = None) -> Tensor:
    """Attention of every row over its own sequence: q [R, heads, d] to [R, heads * d]. Keys are already written.

    scale: of the scores, d ** -0.5 when None. cap: scores s become cap * tanh(s / cap) (Gemma 2).
    """
    outs = [_attend_one(q[s.rows], *cache.read(layer, s), s.mask, scale, cap) for s in layout.spans]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out.reshape(q.shape[0], -1)


def _attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, cap: float | None) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, kv_heads, S, d]
    if rows <= FOLD_ROWS or cap is not None:
        folded = q.reshape(rows, kv_heads, group, dim).transpose(0, 1).reshape(1, kv_heads, rows * group, dim)
        wide = None if mask is None else mask.repeat_interleave(group, 0)
        if cap is None:
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=wide, scale=scale)
        else:
            out = _capped(folded, keys, values, wide, dim**-0.5 if scale is None else scale, cap)
        return out.view(kv_heads, rows, group, -1).transpose(0, 1).reshape(rows, heads, -1)
    queries = q.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=group > 1)
    return out[0].transpose(0, 1)


def _capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, cap: float) -> Tensor:
    """Attention with capped scores, which torch has no kernel for: softmax in fp32 at least."""
    scores = torch.tanh(q @ k.transpose(-1, -2) * scale / cap) * cap
    if mask is not None:
        scores = scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(v.dtype) @ v
