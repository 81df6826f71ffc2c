"""Paged attention: the layout of one pass, the cache of keys and values, and scores over it.

Rows of several sequences lie one after another. Each sequence is a `Span`: its rows, and where the keys of its first
`length` tokens lie. Key lengths are explicit, so what a rejected draft left behind them is never read.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to this many rows, the query heads that share a key head are folded into rows of one product: fewer, larger products.
FOLD_ROWS = 32


@dataclass
class Span:
    """Rows `rows` of the pass belong to one sequence whose keys 0..length-1 lie at `slots`."""

    rows: slice
    length: int
    slots: slice | Tensor  # a slice where the blocks happen to be adjacent: then keys are read in place
    mask: Tensor | None = None  # [rows, length] additive; None where every row sees every key


@dataclass
class Batch:
    """One pass: R rows of tokens with their positions and the slots that their keys go to."""

    tokens: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    slots: Tensor  # [R] int64
    spans: list[Span]
    logit_rows: Tensor | None  # [L] int64: the rows whose logits are wanted; None for all of them


class KVCache:
    """Keys and values of one model, [layers][slots, kv_heads, head_dim]. Slots are not cleared: lengths guard them."""

    def __init__(self, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (slots, kv_heads, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [R, kv_heads, head_dim] at `slots` [R]."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, span: Span) -> tuple[Tensor, Tensor]:
        """Keys and values [length, kv_heads, head_dim] of one sequence."""
        k, v = self.keys[layer], self.values[layer]
        if isinstance(span.slots, slice):
            return k[span.slots], v[span.slots]
        return k.index_select(0, span.slots), v.index_select(0, span.slots)


def slot_range(table: Seq[int], block_size: int, start: int, stop: int, device: torch.device) -> slice | Tensor:
    """The slots of positions start..stop-1 of a block table: a slice when the blocks are adjacent, else indices."""
    first, last = start // block_size, (stop - 1) // block_size
    blocks = table[first : last + 1]
    if all(b == blocks[0] + i for i, b in enumerate(blocks)):
        base = (blocks[0] - first) * block_size
        return slice(base + start, base + stop)
    offsets = torch.arange(first * block_size, (last + 1) * block_size)
    slots = torch.tensor(blocks).repeat_interleave(block_size) * block_size + offsets % block_size
    return slots[start - first * block_size : stop - first * block_size].to(device)


def causal_mask(rows: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Additive mask [rows, length] that aligns the last row with the last key; None for a single row."""
    if rows == 1:
        return None
    later = torch.ones(rows, length, dtype=torch.bool, device=device).triu_(length - rows + 1)
    return torch.zeros(rows, length, dtype=dtype, device=device).masked_fill_(later, float("-inf"))


def attend(q: Tensor, cache: KVCache, layer: int, batch: Batch, scale: float | None = None) -> Tensor:
    """Attention of every row over its own sequence: q [R, heads, d] to [R, heads * d]. Keys are already written."""
    outs = [_attend_one(q[s.rows], *cache.read(layer, s), s.mask, scale) for s in batch.spans]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out.reshape(q.shape[0], -1)


def _attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, kv_heads, S, d]
    if rows <= FOLD_ROWS:
        folded = q.view(rows, kv_heads, group, dim).transpose(0, 1).reshape(1, kv_heads, rows * group, dim)
        wide = None if mask is None else mask.repeat_interleave(group, 0)
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=wide, scale=scale)
        return out.view(kv_heads, rows, group, dim).transpose(0, 1).reshape(rows, heads, dim)
    queries = q.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=group > 1)
    return out[0].transpose(0, 1)
