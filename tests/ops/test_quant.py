"""Quantised weights: GGUF blocks taken as they are, and the error of what is made here."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from headstart.core.errors import ModelError
from headstart.ops.linear import Embedding, pack
from headstart.ops.quant import BLOCKS, GROUP, Quantised, from_blocks, join, quantise

SHAPES = [(1, 1), (7, 32), (5, 33), (64, 96), (96, 576)]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("block", BLOCKS)
def test_gguf_blocks_are_taken_as_they_are(block):
    """Bit for bit what the gguf library dequantises, and the codes are the file's own bytes."""
    kind = gguf.GGMLQuantizationType[block]
    raw = gguf.quants.quantize(normal(24, 192).numpy(), kind)
    made = from_blocks(torch.from_numpy(raw), block)
    assert made.shape == (24, 192) and made.bits == (8 if BLOCKS[block] == "int8" else 4)
    assert torch.equal(made.dequantise(), torch.from_numpy(gguf.quants.dequantize(raw, kind)))
    assert made.codes.numel() == 24 * 192 * made.bits // 8
    order = torch.tensor([3, 3, 0])
    assert torch.equal(made.rows(order).dequantise(), made.dequantise()[order])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_error_is_half_a_step(kind, shape):
    """Every number within half a step of its scale, fp16 rounding of scale and minimum added; fitting may cost the extremes a step."""
    weight = normal(*shape)
    made = quantise(weight, kind)
    error = (made.dequantise() - weight).abs()
    step = made.scale.float().repeat_interleave(GROUP if kind == "int4" else shape[1], 1)[:, : shape[1]]
    assert made.dequantise().shape == shape
    assert bool((error <= step * (0.51 if kind == "int8" else 1.6) + 1e-6).all())
    assert float(error.mean()) <= float(step.mean()) * 0.27 + 1e-6


def test_fitting_lowers_the_error():
    weight = normal(64, 1024)
    groups = weight.view(64, -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (high - low) / 15
    by_range = ((groups - low) / scale).round() * scale + low - groups
    assert float((quantise(weight, "int4").dequantise() - weight).square().mean()) < 0.93 * float(by_range.square().mean())


def test_integers_are_in_range():
    assert int(quantise(normal(9, 64), "int8").integers().abs().max()) == 127
    codes = quantise(normal(9, 64), "int4").integers()
    assert (int(codes.min()), int(codes.max())) == (0, 15)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_special_weights(kind):
    """Zeros stay zeros, one number for all stays itself, and numbers at the edges of fp16 are kept or refused, never infinite."""
    assert torch.equal(quantise(torch.zeros(3, 64), kind).dequantise(), torch.zeros(3, 64))
    same = quantise(torch.full((3, 64), 0.5), kind).dequantise()
    torch.testing.assert_close(same, torch.full((3, 64), 0.5), rtol=1e-6, atol=0)
    tiny = quantise(normal(3, 64) * 1e-6, kind).dequantise()
    assert bool((tiny - normal(3, 64) * 1e-6).abs().max() < 5e-7)
    if kind == "int8":
        assert bool(torch.isfinite(quantise(normal(3, 64) * 1e30, kind).dequantise()).all())
    else:
        with pytest.raises(ModelError, match="int4"):
            quantise(normal(3, 64) * 1e30, kind)


def test_join():
    """One scale per row beside one per group; 4 bits with 4 bits."""
    groups = from_blocks(torch.from_numpy(gguf.quants.quantize(normal(4, 64).numpy(), gguf.GGMLQuantizationType.Q8_0)), "Q8_0")
    rows = quantise(normal(3, 64, seed=1), "int8")
    joined = join([groups, rows])
    assert isinstance(joined, Quantised)
    assert torch.equal(joined.dequantise(), torch.cat([groups.dequantise(), rows.dequantise()]))
    parts = [quantise(normal(n, 70, seed=n), "int4") for n in (1, 2, 5)]
    assert torch.equal(join(parts).dequantise(), torch.cat([p.dequantise() for p in parts]))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_and_rows(kind):
    weight, x, bias = quantise(normal(20, 70), kind), normal(5, 70, seed=1), normal(20, seed=2)
    exact = x.double() @ weight.dequantise().double().T + bias.double()
    near = 0.25 if kind == "int4" else 2e-3  # the kernels round activations, to 8 bits beside weights in 4, to 16 beside 8
    torch.testing.assert_close(pack(weight, bias)(x).double(), exact, rtol=1e-4, atol=near)
    tokens = torch.tensor([4, 0, 4])
    assert torch.equal(Embedding(weight, torch.float64)(tokens), weight.dequantise()[tokens].double())


def test_memory():
    """What is read in a pass: 8 bits and a scale per row; 4 bits and 4 bytes per group."""
    assert quantise(torch.zeros(10, 1024), "int8").nbytes == 10 * (1024 + 4)
    assert quantise(torch.zeros(10, 1024), "int4").nbytes == 10 * (512 + 4 * 1024 // GROUP)
    assert np.isclose(quantise(torch.zeros(10, 1024), "int4").nbytes * 8 / 10240, 5)
