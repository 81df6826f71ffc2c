"""Weights in 8 or 4 bits, with a scale (and in 4 bits a minimum) for each row or each group of 32 columns.

    weight[o, i] = scale[o, g] * code[o, i] + minimum[o, g]        g: the group that column i is in

int8 is symmetric, one scale per row; int4 has groups. Blocks of GGUF's Q8_0, Q4_0 and Q4_1 are of this form already and are taken
as they are: codes, scales and minima are copied, never computed. Knows no file, no model and no processor.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.core.errors import ModelError

GROUP = 32  # columns that share a scale; a GGUF block
_FITS = 4  # rounds of fitting scale and minimum of a 4-bit group to its codes; further ones gain nothing

# GGUF types that are stored as they are -> quantization.
BLOCKS = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4"}


@dataclass(frozen=True)
class Quantised:
    """A weight [out, in]. Codes of 4 bits lie as in a GGUF block: byte j of a group holds columns j (low half) and j + 16.

    Rows may be padded to whole groups; `columns` is how many are meant.
    """

    codes: Tensor  # int8 [out, padded in] for 8 bits, uint8 [out, padded in / 2] for 4
    scale: Tensor  # fp32 [out, 1], or fp16 [out, groups]
    minimum: Tensor | None  # as scale; None for 8 bits
    columns: int

    @property
    def bits(self) -> int:
        return 8 if self.codes.dtype is torch.int8 else 4

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.columns

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.codes, self.scale, self.minimum) if t is not None)

    def to(self, device: torch.device) -> Quantised:
        minimum = None if self.minimum is None else self.minimum.to(device)
        return Quantised(self.codes.to(device), self.scale.to(device), minimum, self.columns)

    def numel(self) -> int:
        return self.codes.shape[0] * self.columns

    def lookup(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `tokens` [R] of the weight, as [R, in]."""
        return self.rows(tokens).dequantise().to(dtype)

    def rows(self, index: Tensor) -> Quantised:
        """The rows at `index` [n], in that order."""
        minimum = None if self.minimum is None else self.minimum[index]
        return Quantised(self.codes[index], self.scale[index], minimum, self.columns)

    def integers(self) -> Tensor:
        """The codes, one per column: int8 [out, padded in]."""
        if self.bits == 8:
            return self.codes
        pairs = self.codes.view(len(self.codes), -1, GROUP // 2)
        return torch.cat((pairs & 15, pairs >> 4), -1).view(len(self.codes), -1).to(torch.int8)

    def dequantise(self) -> Tensor:
        """The weight in fp32 [out, in]."""
        codes = self.integers().float().view(len(self.codes), self.scale.shape[1], -1)
        weight = codes * self.scale.float()[..., None]
        if self.minimum is not None:
            weight += self.minimum.float()[..., None]
        return weight.view(len(self.codes), -1)[:, : self.columns]


Weight = Tensor | Quantised


def quantise(weight: Tensor, kind: str) -> Quantised:
    """A weight [out, in] in "int8" or "int4". Raises ModelError when its numbers are too large for that."""
    rows, columns = weight.shape
    values = weight.float()
    if kind == "int8":
        scale = values.abs().amax(1, keepdim=True) / 127
        return Quantised(_divide(values, scale).clamp_(-127, 127).to(torch.int8), scale, None, columns)
    groups = F.pad(values, (0, -columns % GROUP)).view(rows, -1, GROUP)
    codes, scale, minimum = _fit(groups)
    if not bool(torch.isfinite(scale + minimum).all()):
        raise ModelError(f"a weight with values up to {float(values.abs().max()):g} does not fit into int4: use int8")
    low, high = codes.to(torch.uint8).chunk(2, -1)
    return Quantised((low | high << 4).view(rows, -1), scale[..., 0], minimum[..., 0], columns)


def _fit(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0..15, scale and minimum (both fp16) of groups [..., 32] that lie close to them in the sense of least squares.

    From the range of each group on, codes are rounded and the line through them fitted, in turns (Lloyd's algorithm); the
    best of the rounds is kept.
    """
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale, minimum = (high - low) / 15, low
    best: tuple[Tensor, ...] | None = None
    for _ in range(_FITS):
        rounded = scale.half(), minimum.half()
        s, m = (x.float() for x in rounded)
        codes = _divide(groups - m, s).clamp_(0, 15)
        error = (codes * s + m - groups).square().sum(-1, keepdim=True)
        now = (error, codes, *rounded)
        best = now if best is None else tuple(torch.where(error < best[0], a, b) for a, b in zip(now, best, strict=True))
        centred = codes - codes.mean(-1, keepdim=True)
        scale = _ratio((centred * groups).sum(-1, keepdim=True), centred.square().sum(-1, keepdim=True))
        minimum = groups.mean(-1, keepdim=True) - scale * codes.mean(-1, keepdim=True)
    assert best is not None
    return best[1], best[2], best[3]


def _divide(values: Tensor, scale: Tensor) -> Tensor:
    """values / scale, rounded; 0 where the scale is 0."""
    return (values * _ratio(torch.ones_like(scale), scale)).round_()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0.0, a / b)


def from_blocks(raw: Tensor, block: str) -> Quantised:
    """A weight from the bytes of its GGUF blocks [out, bytes per row] (ggml-common.h: block_q8_0, block_q4_0, block_q4_1)."""
    heads, size = (2 if block == "Q4_1" else 1), (GROUP if block == "Q8_0" else GROUP // 2)
    blocks = raw.reshape(len(raw), -1, 2 * heads + size)
    codes = blocks[..., 2 * heads :].reshape(len(raw), -1)
    head = blocks[..., : 2 * heads].contiguous().view(torch.float16)  # [out, groups, heads]
    scale = head[..., 0].contiguous()
    columns = scale.shape[1] * GROUP
    if block == "Q8_0":
        return Quantised(codes.view(torch.int8), scale, None, columns)
    return Quantised(codes, scale, head[..., 1].contiguous() if block == "Q4_1" else -8 * scale, columns)


def join(parts: Seq[Weight]) -> Weight:
    """Weights of equal width, their rows one under the other; all of one kind."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)  # type: ignore[arg-type]
    quantised: list[Quantised] = [p for p in parts if isinstance(p, Quantised)]
    groups = max(p.scale.shape[1] for p in quantised)

    def cat(tensors: Seq[Tensor | None]) -> Tensor | None:
        """Scales one under the other: those of whole rows are repeated where others have groups."""
        return None if tensors[0] is None else torch.cat([t.expand(-1, groups) for t in tensors if t is not None])

    scale = cat([p.scale for p in quantised])
    assert scale is not None
    return Quantised(torch.cat([p.codes for p in quantised]), scale, cat([p.minimum for p in quantised]), parts[0].shape[1])
