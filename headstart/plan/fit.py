"""Whether a model fits: weights, KV and working memory of each device, for a split over several."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from headstart.core.memory import bytes_per_token, sequence_bytes
from headstart.plan.device import Device
from headstart.plan.shape import Shape
from headstart.plan.speed import kv_share

SPLITS = (1, 2, 4, 8, 16, 32, 64)
PASS_ROWS = 2048  # rows of the widest pass, prefill included
LOGIT_ROWS = 256


@dataclass(frozen=True)
class Fit:
    """One split. Bytes are of each device; `room` is what is left for KV, negative when the weights alone do not fit."""

    devices: int
    weights: float
    working: float
    budget: float
    kv_per_token: float
    sequence: float  # KV of one sequence at the context asked for; drafts lie within it
    longest: int  # tokens a lone sequence may have
    problem: str | None = None  # why it cannot be split so

    @property
    def room(self) -> float:
        return self.budget - self.weights - self.working

    @property
    def batch(self) -> int:
        """Sequences at once, each at the context asked for."""
        return int(max(self.room, 0) // self.sequence) if self.problem is None else 0

    @property
    def fits(self) -> bool:
        return self.batch > 0


def fit(models: Seq[tuple[Shape, float]], kv_bytes: float, device: Device, share: float, devices: int, context: int) -> Fit:
    """The split of the target (first) and its draft over `devices`. models: shapes and bytes a weight."""
    target = models[0][0]
    weights = sum(shape.parameters * size for shape, size in models) / devices
    wide = max(PASS_ROWS * (4 * s.hidden + 2 * s.intermediate / devices) * max(size, 2.0) for s, size in models)
    working = wide + LOGIT_ROWS * target.vocab * 4

    def sequence(tokens: int) -> float:
        return sum(sequence_bytes(s.cache, tokens, kv_bytes) * kv_share(s, devices) for s, _ in models)

    room = device.memory * share - weights - working
    low, high = 0, target.max_len
    while low < high:  # KV grows with the length, so halving finds the longest that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sequence(middle) <= room else (low, middle - 1)
    problem = f"{target.heads} heads cannot be split over {devices}" if target.heads % devices else None
    per_token = sum(bytes_per_token(s.cache, kv_bytes) * kv_share(s, devices) for s, _ in models)
    return Fit(devices, weights, working, device.memory * share, per_token, sequence(context), low, problem)


def splits(models: Seq[tuple[Shape, float]], kv_bytes: float, device: Device, share: float, context: int) -> tuple[list[Fit], Fit | None]:
    """Splits over 1, 2, 4, 8… devices up to the first that fits, at least up to 8; and that first one."""
    out: list[Fit] = []
    first = None
    for n in SPLITS[:1] if device.measured else SPLITS:  # of this machine there is one
        out.append(fit(models, kv_bytes, device, share, n, context))
        if first is None and out[-1].fits:
            first = out[-1]
        if n >= 8 and first is not None:
            break
    return out, first
