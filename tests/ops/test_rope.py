"""Rotary embedding against transformers, to the bit where both compute in fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from headstart.core.errors import ModelError
from headstart.ops.rope import attention_factor, frequencies, rotate, rotation

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0 + i / 10 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}
CASES = [
    (8, 10000.0, {"rope_type": "default"}),
    (64, 100000.0, {"rope_type": "default"}),
    (64, 10000.0, {"rope_type": "linear", "factor": 4.0}),
    (64, 500000.0, LLAMA3),
    (128, 500000.0, {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 64}),
    (32, 10000.0, {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 256}),
    (64, 10000.0, {"rope_type": "dynamic", "factor": 4.0}),
    (64, 1000000.0, YARN),
    (32, 10000.0, {**YARN, "factor": 1.0, "beta_fast": 16, "beta_slow": 4}),
    (16, 10000.0, {**YARN, "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.8}),
    (64, 10000.0, {**YARN, "attention_factor": 1.3}),
    (16, 10000.0, LONGROPE),
    (16, 10000.0, {**LONGROPE, "attention_factor": 1.2}),
]


def theirs(dim: int, theta: float, scaling: dict) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=dim * 2,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **scaling},
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize(("dim", "theta", "scaling"), CASES)
def test_frequencies_equal_transformers(dim, theta, scaling):
    ours = frequencies(dim, theta, scaling)
    assert ours.dtype is torch.float32 and ours.shape == (dim // 2,)
    module = theirs(dim, theta, scaling)
    torch.testing.assert_close(ours, module.inv_freq, rtol=3e-7, atol=0)
    assert attention_factor(scaling) == pytest.approx(module.attention_scaling, rel=1e-12)


def test_long_factors_serve_contexts_above_the_original():
    """One choice for all texts: a row's logits may not depend on how much is drafted after it."""
    module = theirs(16, 10000.0, LONGROPE)
    module(torch.ones(1), torch.tensor([[5000]]))  # transformers chooses by the text: this makes it take the long ones
    torch.testing.assert_close(frequencies(16, 10000.0, LONGROPE, 4097), module.inv_freq, rtol=3e-7, atol=0)
    short = torch.tensor(LONGROPE["short_factor"])
    for longest in (0, 4096):
        torch.testing.assert_close(frequencies(16, 10000.0, LONGROPE, longest), frequencies(16, 10000.0) / short)


@pytest.mark.parametrize(("dim", "theta", "scaling"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rotation_equals_transformers(dim, theta, scaling, dtype):
    """Near and far positions, several heads, rows in any order."""
    positions = torch.tensor([0, 1, 2, 77, 5, 4095, 100_000])
    module = theirs(dim, theta, scaling)
    q = torch.randn(len(positions), 3, dim, generator=torch.Generator().manual_seed(0), dtype=dtype)
    cos, sin = module(q[None], positions[None])
    wanted, _ = apply_rotary_pos_emb(q.transpose(0, 1)[None], q.transpose(0, 1)[None], cos, sin)
    got = rotate(q, *rotation(positions, module.inv_freq, dtype, attention_factor(scaling)))
    assert got.dtype is dtype
    torch.testing.assert_close(got, wanted[0].transpose(0, 1), rtol=1e-6, atol=1e-6 if dtype is torch.float32 else 1e-14)


def test_rotation_depends_on_the_distance_only():
    """Scores of two rotated vectors depend on the difference of their positions."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 1, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    inv = frequencies(16, 10000.0)

    def score(i: int, j: int) -> float:
        turned = [rotate(x, *rotation(torch.tensor([at]), inv, torch.float64)) for x, at in ((q, i), (k, j))]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-4)


def test_spellings_of_older_configs():
    plain = frequencies(16, 10000.0)
    assert torch.equal(frequencies(16, 10000.0, None), plain)
    assert torch.equal(frequencies(16, 10000.0, {"type": "default"}), plain)
    assert torch.equal(frequencies(16, 10000.0, {"type": "linear", "factor": 2.0}), plain / 2)


@pytest.mark.parametrize("kind", ["su", "nonsense", 3, None])
def test_unknown_scalings_are_refused(kind):
    with pytest.raises(ModelError, match=str(kind)):
        frequencies(16, 10000.0, {"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize("missing", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
def test_a_missing_number_is_named(missing):
    with pytest.raises(ModelError, match=missing):
        frequencies(16, 10000.0, {k: v for k, v in LLAMA3.items() if k != missing})
    for kind in ("linear", "yarn"):
        with pytest.raises(ModelError, match="factor"):
            frequencies(16, 10000.0, {"rope_type": kind, "original_max_position_embeddings": 8})
    with pytest.raises(ModelError, match="short_factor"):
        frequencies(16, 10000.0, {**LONGROPE, "short_factor": [1.0]})
