"""Products with a weight that never changes: packed once for the processor, then y = x W^T (+ b).

On the CPU the kernels serve where they were built (headstart/kernels): fp32, bf16 and integers, every row the same bits whatever
stands beside it. Without them, oneDNN's packed layout serves 1 to 8 rows in fp32 in nearly the time of one, and (packed for
several rows) computes a row by the same instructions whatever stands beside it. The plain call grows with every row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.kernels.library import active
from headstart.kernels.packing import Packed, pack_floats, pack_integers
from headstart.ops.quant import Quantised, Weight

Linear = Callable[[Tensor], Tensor]
Table = Tensor | Quantised | Packed

# oneDNN chooses its blocking for this many rows; a hint of 1 would make one-row and many-row passes round differently.
PACK_ROWS = 8
# From this many rows on, emulated bfloat16 is slower than a float32 product with weights converted on the way.
WIDE_ROWS = 32


def pack(weight: Weight, bias: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Linear:
    """A function from x [R, in] to x W^T + b [R, out], for `weight` [out, in]; the packed form replaces the weight.

    dtype: of the products with a quantised weight.
    """
    if _served(weight, dtype):
        return _pack_native(weight, bias)
    if isinstance(weight, Quantised):
        return lambda x: F.linear(x, weight.dequantise().to(x.dtype), bias)
    return _pack_torch(weight, bias)


def table_of(weight: Weight, dtype: torch.dtype) -> Table:
    """A weight for looking up its rows, in the order of the kernels where they serve."""
    return _pack_native(weight) if _served(weight, dtype) else weight


class Embedding:
    """A function from tokens [R] to their rows [R, in] of a table [vocabulary, in], times the scale that some families put on them."""

    def __init__(self, table: Table, dtype: torch.dtype, scale: float = 1.0) -> None:
        self.table, self.dtype, self.scale = table, dtype, scale

    def __call__(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.table) if isinstance(self.table, Tensor) else self.table.lookup(tokens, self.dtype)
        if self.scale == 1.0:
            return x
        return x * torch.tensor(self.scale, dtype=torch.float32, device=x.device).to(self.dtype)  # rounded as in transformers


def _served(weight: Weight, dtype: torch.dtype) -> bool:
    """Whether the kernels multiply this weight."""
    of, device = (weight.dtype, weight.device) if isinstance(weight, Tensor) else (dtype, weight.codes.device)
    return device.type == "cpu" and of in (torch.float32, torch.bfloat16) and active().path != "torch"


def _pack_native(weight: Weight, bias: Tensor | None = None) -> Packed:
    if isinstance(weight, Tensor):
        return pack_floats(weight, bias)
    return pack_integers(weight.integers(), weight.scale, weight.minimum, weight.columns, f"int{weight.bits}", bias)


def _pack_torch(weight: Tensor, bias: Tensor | None) -> Linear:
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return lambda x: F.linear(x, weight, bias)
    if not torch.backends.mkldnn.is_available():
        return lambda x: F.linear(x, weight, bias)
    if weight.dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

    def emulated(x: Tensor) -> Tensor:
        if x.shape[0] >= WIDE_ROWS:
            return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(weight.dtype)
        y = (weight @ x.t()).t()  # faster than x W^T
        return y if bias is None else y + bias

    return emulated
