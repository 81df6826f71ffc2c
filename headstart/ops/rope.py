"""Rotary position embedding: frequencies (plain, linear and llama3 scaling) and the rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headstart.core.errors import ModelError


def frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> Tensor:
    """Inverse frequencies [head_dim / 2] in fp32: theta^(-2i/d) (Su et al. 2104.09864), scaled as the config says.

    "llama3" follows the Llama 3.1 release: long wavelengths are stretched by `factor`, short ones kept, and those
    between `low_freq_factor` and `high_freq_factor` blended. Raises ModelError for a scaling not known or not complete.
    """
    inv = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return inv
    if kind == "linear":
        return inv / _number(scaling, "factor")
    if kind == "llama3":
        factor, low, high = (_number(scaling, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        original = _number(scaling, "original_max_position_embeddings")
        wavelength = 2 * math.pi / inv
        smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * inv / factor + smooth * inv
    raise ModelError(f"rope scaling {kind!r} is not supported; supported: default, linear, llama3")


def _number(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, (int, float)) or not value > 0:
        raise ModelError(f"rope scaling needs {name!r} as a positive number, not {value!r}")
    return value


def rotation(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin [R, 1, d] for positions [R]; the sign of the half rotation is folded into sin."""
    angle = positions[:, None].float() * inv_freq  # [R, d/2]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads x [R, heads, d] by the angles of their rows."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
