"""Counter-based noise on tensors: the same function as `core/rand.py`, bit for bit, for many ids at once."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core import rand
from headstart.kernels import sampling as kernels


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


def _shift(x: Tensor, n: int) -> Tensor:
    """Logical right shift: torch's is arithmetic."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = x + _signed(rand.GOLDEN)
    x = (x ^ _shift(x, 30)) * _signed(rand.MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(rand.MIX_2)
    return x ^ _shift(x, 31)


def uniforms(seed: int, lane: int, root: int, ids: Tensor) -> Tensor:
    """`rand.uniform(seed, lane, root, id)` for every id: int64 [N] to fp64 [N] in [0, 1)."""
    bits = _mix(ids ^ _signed(rand.key(seed, lane, root)))
    return _shift(bits, 11).double() * 2.0**-53


def race(law: Tensor, seed: int, position: int, names: Tensor | None = None) -> int:
    """One sample of a law [V] by an exponential race: argmin E(v) / law(v), E(v) ~ Exp(1) keyed by (seed, position, v).

    The same noise under another law gives the same id as often as a coupling of the two allows within a factor
    (Daliri, Musco, Suresh 2408.07978), which is how a draft shares the target's choice. Only ids of positive
    probability take part. names: the ids [V] that the entries of the law stand for; their own numbers when not given.
    """
    if by := kernels.serving(law, torch.float64):
        return kernels.race(by, law, rand.key(seed, rand.POSITION, position), names)
    at = law.nonzero().squeeze(1)
    ids = at if names is None else names[at]
    arrival = -torch.log1p(-uniforms(seed, rand.POSITION, position, ids))
    return int(ids[torch.argmin(arrival / law[at])])


def pick(weights: Tensor, u: float) -> int:
    """Inverse CDF on unnormalised fp64 weights [V]: the twin of `acceptance.pick`. Never an id of weight 0."""
    running = weights.cumsum(0)
    at = int(torch.searchsorted(running, u * running[-1], right=True))
    return at if at < len(weights) else int(weights.nonzero()[-1])
