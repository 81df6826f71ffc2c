"""Rotary position embedding: frequencies (plain, and scaled for longer contexts) and the rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headstart.core.errors import ModelError

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def frequencies(dim: int, theta: float, scaling: Mapping[str, Any] | None = None, max_len: int = 0) -> Tensor:
    """Inverse frequencies [dim / 2] in fp32: theta^(-2i/d) (Su et al. 2104.09864), scaled as the config says.

    dim: how many numbers of a head turn. max_len: the longest text there may be, in tokens. Frequencies do not change with the text's
    own length, or a row's logits would depend on what was drafted after it:

    - "dynamic" (NTK by length) leaves texts within the model's context as they are, and longer ones are refused;
    - "longrope" (Ding et al. 2402.13753) has short and long factors: the long ones where `max_len` is above the original context.

    "llama3" follows the Llama 3.1 release: long wavelengths are stretched by `factor`, short ones kept, those between
    `low_freq_factor` and `high_freq_factor` blended. "yarn" is Peng et al. 2309.00071. Raises ModelError for a scaling not known or
    not complete.
    """
    scaling = scaling or {}
    kind = scaling_kind(scaling)
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    inv = 1.0 / (theta**exponents)
    if kind == "linear":
        return inv / _number(scaling, "factor")
    if kind == "llama3":
        factor, low, high = (_number(scaling, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        original = _number(scaling, "original_max_position_embeddings")
        wavelength = 2 * math.pi / inv
        smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * inv / factor + smooth * inv
    if kind == "yarn":
        keep = _yarn_kept(dim, theta, scaling)
        return inv / _number(scaling, "factor") * (1 - keep) + inv * keep
    if kind == "longrope":
        name = "long_factor" if max_len > _number(scaling, "original_max_position_embeddings") else "short_factor"
        factors = scaling.get(name)
        if not isinstance(factors, list) or len(factors) != dim // 2:
            raise ModelError(f"rope scaling needs {name!r} as a list of {dim // 2} numbers, not {factors!r}")
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * theta**exponents)
    return inv


def scaling_kind(scaling: Mapping[str, Any]) -> str:
    """Which of `SCALINGS` the rotary parameters of a config ask for. Raises ModelError for another."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise ModelError(f"rope scaling {kind!r} is not supported; supported: {', '.join(SCALINGS)}")
    return kind


def attention_factor(scaling: Mapping[str, Any]) -> float:
    """What yarn and longrope put on cos and sin, so that scores keep their spread over longer texts; else 1."""
    kind, given = scaling_kind(scaling), scaling.get("attention_factor")
    if kind not in ("yarn", "longrope"):
        return 1.0
    if given is not None:
        return _number(scaling, "attention_factor")
    factor = _number(scaling, "factor")
    if kind == "longrope":
        original = _number(scaling, "original_max_position_embeddings")
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    if factor <= 1:
        return 1.0
    grown = lambda m: 0.1 * m * math.log(factor) + 1.0  # noqa: E731
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):  # as DeepSeek weights the two
        return grown(_number(scaling, "mscale")) / grown(_number(scaling, "mscale_all_dim"))
    return grown(1.0)


def _yarn_kept(dim: int, theta: float, scaling: Mapping[str, Any]) -> Tensor:
    """YaRN's ramp: how much [dim / 2] of each frequency is kept, 1 for those that turn often within the original context."""
    original = _number(scaling, "original_max_position_embeddings")

    def turning(times: float) -> float:
        """The index whose pair turns so many times within the original context."""
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning(scaling.get("beta_fast") or 32), turning(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)


def _number(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, (int, float)) or not value > 0:
        raise ModelError(f"rope scaling needs {name!r} as a positive number, not {value!r}")
    return value


def rotation(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and signed sin [R, 1, d] for positions [R], times `factor`; the sign of the half rotation is folded into sin."""
    angle = positions[:, None].float() * inv_freq  # [R, d/2]
    cos, sin = angle.cos() * factor, angle.sin() * factor
    return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading d numbers of heads x [R, heads, >= d] by the angles [R, 1, d] of their rows."""
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], cos, sin), x[..., dim:]), -1)
    return torch.addcmul(x * cos, x.roll(dim // 2, -1), sin)
