"""Products of the kernels: the numbers of x W^T + b, and the same bits of a row whatever stands beside it, on every path there is."""

from __future__ import annotations

import pytest
import torch

from headstart.kernels import library
from headstart.kernels.packing import as_multiplied, pack_floats
from headstart.ops.linear import _pack_native
from headstart.ops.quant import Quantised, from_blocks, quantise

SHAPES = [(1, 1), (5, 33), (16, 64), (100, 70), (65, 576), (192, 1537)]
KINDS = ("float32", "bfloat16", "int8", "int4", "Q8_0", "Q4_0")
# Of the root of the sum of squares of the terms: fp32 sums, and activations in 16 bits for weights in 8.
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-6, "int8": 5e-5, "int4": 1e-6, "Q8_0": 5e-5, "Q4_0": 1e-6}


needs_kernels = pytest.mark.skipif(library._load()[0] is None, reason="the kernels were not built")
pytestmark = needs_kernels


def make(kind: str, rows: int, columns: int):
    """(a weight of this kind, what it stands for in fp64)"""
    generator = torch.Generator().manual_seed(rows + columns)
    weight = torch.randn(rows, columns, generator=generator)
    if kind.startswith("Q"):
        import gguf

        padded = torch.nn.functional.pad(weight, (0, -columns % 32))
        raw = gguf.quants.quantize(padded.numpy(), gguf.GGMLQuantizationType[kind])
        blocks = from_blocks(torch.from_numpy(raw), kind)
        made = Quantised(blocks.codes, blocks.scale, blocks.minimum, columns)
        return made, made.dequantise().double()
    if kind.startswith("int"):
        made = quantise(weight, kind)
        return made, made.dequantise().double()
    made = weight.to(getattr(torch, kind))
    return made, made.double()


def in_8_bits(x: torch.Tensor) -> torch.Tensor:
    """What weights in 4 bits see of x [R, in]: integers up to 127 with a scale per 32 numbers."""
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    scale = groups.abs().amax(2, keepdim=True) / 127
    return ((groups * (1 / scale)).round().double() * scale.double()).flatten(1)[:, : x.shape[1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_numbers_and_bits(path, kind, shape, biased):
    """Against fp64; then rows alone, in passes of 1 to 33, in any order, are the same bits."""
    weight, exact = make(kind, *shape)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(33, shape[1], generator=generator) * torch.rand(33, 1, generator=generator).mul(8).exp2()
    bias = torch.randn(shape[0], generator=generator) if biased else None
    packed = _pack_native(weight, bias)
    whole = packed(x)
    seen = in_8_bits(x) if "4" in kind else as_multiplied(path, packed, x).double()
    wanted = seen @ exact.T + (0 if bias is None else bias.double())
    size = (x.double().square() @ exact.square().T).sqrt() * shape[1] ** 0.5 + 1e-9
    assert float(((whole - wanted).abs() / size).max()) < TOLERANCE[kind]
    for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 32):
        assert torch.equal(packed(x[:n]), whole[:n]), f"{n} rows"
    order = torch.randperm(33, generator=generator)
    assert torch.equal(packed(x[order]), whole[order])
    assert torch.equal(torch.cat([packed(x[i : i + 1]) for i in range(33)]), whole)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_no_bit(path, threads):
    weight, _ = make("bfloat16", 300, 64)
    packed, x = pack_floats(weight), torch.randn(7, 64, generator=torch.Generator().manual_seed(2))
    before, wanted = torch.get_num_threads(), packed(x)
    try:
        torch.set_num_threads(threads)
        assert all(torch.equal(packed(x), wanted) for _ in range(20))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 33), (65, 576)], ids=str)
def test_a_packed_weight_is_a_table(path, kind, shape):
    weight, exact = make(kind, *shape)
    tokens = torch.tensor([0, shape[0] - 1, 3, 3])
    assert torch.equal(_pack_native(weight).lookup(tokens, torch.float64), exact[tokens])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_its_row_only(path, kind, bad):
    weight, _ = make(kind, 40, 70)
    packed, x = _pack_native(weight), torch.ones(5, 70)
    clean = packed(x)
    x[2, 50] = bad
    got = packed(x)
    assert not bool(torch.isfinite(got[2]).any()) and torch.equal(got[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_zeros_and_extremes(path):
    """Rows of zeros give the bias; the smallest and largest numbers neither vanish nor overflow in 16 bits."""
    for kind in KINDS:
        weight, exact = make(kind, 40, 64)
        packed = _pack_native(weight)
        assert torch.equal(packed(torch.zeros(2, 64)), torch.zeros(2, 40))
        for scale in (1e-30, 1e30):
            x = torch.full((1, 64), scale)
            unit = float(as_multiplied(path, packed, x)[0, 0]) / scale
            torch.testing.assert_close(packed(x).double() / scale, unit * exact.sum(1)[None], rtol=1e-3, atol=2e-3)


def test_dtypes_of_the_rows(path):
    packed = pack_floats(make("bfloat16", 40, 64)[0])
    x = torch.randn(3, 64).bfloat16()
    assert packed(x).dtype is torch.bfloat16 and torch.equal(packed(x), packed(x.float()).bfloat16())
    assert torch.equal(packed(x.t().contiguous().t()), packed(x))
