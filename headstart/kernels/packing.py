"""Weights in the order in which the kernels read them: panels of 16 outputs side by side, their inputs in pairs one after another.

A packed weight is one copy, read from the first byte to the last in every pass. It is a function from x to x W^T + b, and a table whose
rows can be looked up (an embedding that is the head too needs no second copy).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.kernels.library import Active, Matrix, active

PANEL = 16
GROUP = 32
KINDS = {torch.float32: 0, torch.bfloat16: 1, "int8": 2, "int4": 3}


class Packed:
    """A weight [out, in] in the kernels' order. `struct` is what they are given; its pointers live as long as this object."""

    def __init__(self, codes: Tensor, scale: Tensor | None, minimum: Tensor | None, bias: Tensor | None, kind: int, shape: tuple[int, int]):
        self.codes, self.scale, self.minimum, self.shape = codes, scale, minimum, shape
        self.bias = None if bias is None else bias.float().contiguous()
        groups = 0 if scale is None or scale.dtype is torch.float32 else scale.shape[1]
        columns = -(-shape[1] // (2 if kind < 2 else GROUP)) * (2 if kind < 2 else GROUP)
        pointers = (None if t is None else t.data_ptr() for t in (codes, scale, minimum, self.bias))
        self.struct = Matrix(kind, *shape, columns, groups, *pointers)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b [..., out] in the dtype of x [..., in]; every row's numbers are the same bits for any number of rows."""
        return self.product(active(), x)

    def product(self, by: Active, x: Tensor) -> Tensor:
        values = x.reshape(-1, self.shape[1]).float().contiguous()
        out = torch.empty(len(values), self.shape[0])
        if len(values):
            by.call("product", self.struct, values.data_ptr(), len(values), out.data_ptr())
        return out.to(x.dtype).view(*x.shape[:-1], self.shape[0])

    def lookup(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `tokens` [R] of the weight, as [R, in]."""
        panel, column = tokens // PANEL, tokens % PANEL
        rows = self.codes[panel, :, column]
        if self.codes.dtype is torch.uint8:
            rows = torch.stack((rows & 15, rows >> 4), 2)
        rows = rows.reshape(len(tokens), -1)
        if self.scale is not None:
            scale = self.scale[panel, :, column].float()  # [R, groups]
            rows = rows.float().view(*scale.shape, -1) * scale[..., None]
            if self.minimum is not None:
                rows += self.minimum[panel, :, column].float()[..., None]
            rows = rows.view(len(tokens), -1)
        return rows[:, : self.shape[1]].to(dtype)


def pack_floats(weight: Tensor, bias: Tensor | None = None) -> Packed:
    """Pack a weight [out, in] in fp32 or bf16."""
    codes = _panels(_padded(weight, 2), torch.int32).view(weight.dtype)
    if weight.dtype is torch.bfloat16:
        codes = codes.unflatten(2, (PANEL, 2))
    return Packed(codes, None, None, bias, KINDS[weight.dtype], (weight.shape[0], weight.shape[1]))


def pack_integers(codes: Tensor, scale: Tensor, minimum: Tensor | None, columns: int, kind: str, bias: Tensor | None = None) -> Packed:
    """Pack codes int8 [out, padded in] with scales [out, 1] in fp32 or [out, groups] in fp16, minima as scales or None.

    kind: "int8", or "int4" for codes 0..15. `columns`: how many inputs there are.
    """
    units = _padded(codes, GROUP)
    if kind == "int4":  # a unit of eight columns: the first four in the low halves of its bytes, the others in the high ones
        low, high = units.view(len(units), -1, 2, 4).unbind(2)
        units = (low | high << 4).view(torch.uint8).flatten(1)
    panels = _panels(units, torch.int32 if kind == "int4" else torch.int16).view(units.dtype).unflatten(2, (PANEL, -1))
    beside = [None if t is None else _panels(_padded(t, 1), t.dtype) for t in (scale, minimum)]
    return Packed(panels, beside[0], beside[1], bias, KINDS[kind], (len(codes), columns))


def _padded(rows: Tensor, columns: int) -> Tensor:
    """Rows [out, in] filled up with zeros to whole panels and to a multiple of `columns`; themselves where nothing is missing."""
    missing = (-rows.shape[1] % columns, -rows.shape[0] % PANEL)
    return F.pad(rows, (0, missing[0], 0, missing[1])) if any(missing) else rows.contiguous()


def _panels(rows: Tensor, unit: torch.dtype) -> Tensor:
    """Rows [out, in] as [panel, unit, 16]: a unit, such as a pair, is moved as one number, ten times as fast as its halves."""
    return rows.view(unit).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


def disagreement(by: Active) -> str:
    """In words, where a path's products are wrong; empty when they are right."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (37, 70), generator=generator) / 127  # what 8 bits hold exactly, once each group has a largest
    x[:, ::GROUP] = 1
    weight = torch.randn(67, 70, generator=generator)
    codes = torch.randint(0, 16, (67, 96), generator=generator, dtype=torch.int8)
    groups = torch.rand(67, 3, generator=generator).half() + 0.5
    expanded = groups.float().repeat_interleave(GROUP, 1)
    trials = {
        "float32": (pack_floats(weight), weight),
        "bfloat16": (pack_floats(weight.bfloat16()), weight.bfloat16()),
        "int8": (pack_integers(codes, groups[:, :1].float().contiguous(), None, 70, "int8"), codes * groups[:, :1].float()),
        "int4": (pack_integers(codes, groups, -groups, 70, "int4"), (codes - 1) * expanded),
    }
    for name, (packed, wanted) in trials.items():
        exact = as_multiplied(by.path, packed, x).double() @ wanted[:, :70].double().T
        got = packed.product(by, x)
        if not torch.allclose(got.double(), exact, rtol=1e-4, atol=2e-2 if packed.scale is not None else 1e-3):
            return f"the {by.path} kernels compute wrong {name} products on this processor: please report it"
        if not torch.equal(packed.product(by, x[-1:]), got[-1:]):
            return f"the {by.path} kernels give a row other {name} bits alone than beside others on this processor: please report it"
    return ""


def as_multiplied(path: str, weight: Packed, x: Tensor) -> Tensor:
    """The numbers x that a path multiplies with a weight: amx rounds them to bf16 for weights in bf16."""
    return x.bfloat16().to(x.dtype) if path == "amx" and weight.codes.dtype is torch.bfloat16 else x
