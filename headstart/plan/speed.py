"""Predicted times from bytes and operations: a roofline, drawn for a server of equal devices.

What a device reaches of its data sheet, and what an engine adds, is fitted to published steps of Llama-3.1-8B on one H100 (SGLang,
EAGLE-3): 5.886 ms + 0.02101 ms a row + 3.93e-5 ms a token of KV, and 1.21 ms a step beside the pass. The two roofs add: a pass of many
rows takes longer than its weights alone well before arithmetic binds it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property

from headstart.core.memory import sequence_bytes
from headstart.core.theory import batch_speedup, expected_tokens, paying_batches
from headstart.plan.device import Device
from headstart.plan.shape import Shape

BANDWIDTH_SHARE = 0.8
ARITHMETIC_SHARE = 0.77
STEP = 1.2e-3  # scheduling and sampling, once a step
DRAFT = 0.3e-3  # sampling between two drafts
LAYER = 20e-6  # a layer cannot be launched faster than this


@dataclass(frozen=True)
class Load:
    """A model on `devices` devices, its weights and KV at so many bytes a number, `context` tokens in each sequence."""

    shape: Shape
    device: Device
    devices: int
    weight_bytes: float
    kv_bytes: float
    context: int

    @cached_property
    def _sequence(self) -> float:
        """Bytes of KV that a pass reads for each sequence on each device."""
        return sequence_bytes(self.shape.cache, self.context, self.kv_bytes) * kv_share(self.shape, self.devices)

    def pass_time(self, rows: int, batch: int) -> float:
        """Seconds of a pass of `batch` sequences over `rows` rows in all."""
        s = self.shape
        weights = s.read(rows) * self.weight_bytes / self.devices
        kv = batch * self._sequence
        reading = (weights + kv) / (BANDWIDTH_SHARE * self.device.bandwidth)
        computing = 2 * s.active * rows / (ARITHMETIC_SHARE * self.device.operations * self.devices)
        # Two all-reduces a layer: after attention and after the MLP.
        talking = 2 * s.layers * self.device.link if self.devices > 1 else 0.0
        launching = 0.0 if self.device.measured else s.layers * LAYER
        return max(reading + computing, launching) + talking


def kv_share(shape: Shape, devices: int) -> float:
    """The part of a sequence's KV that each device holds: KV heads are split as far as there are any, latent ones not at all."""
    return 1 / min(devices, shape.kv_heads) if shape.split_cache else 1.0


@dataclass(frozen=True)
class Speed:
    """Plain and speculative decoding of one target; `draft` None: drafts that cost nothing, such as lookup."""

    target: Load
    draft: Load | None
    acceptance: Seq[float]

    def plain(self, batch: int) -> float:
        """Tokens a second of all sequences together."""
        return batch / self._step(batch, batch)

    def speculative(self, batch: int) -> float:
        """The same with drafts."""
        return self.plain(batch) * self.gain(batch)

    def gain(self, batch: int) -> float:
        """Speed-up at a batch size."""
        return batch_speedup(batch, self.acceptance, lambda rows: self._step(rows, batch), self._draft_time)

    def pays_at(self, limit: int) -> list[tuple[int, int]]:
        """The batch sizes up to `limit` at which drafts pay, in stretches."""
        return paying_batches(self.gain, limit)

    @property
    def tokens(self) -> float:
        """Tokens a pass."""
        return expected_tokens(self.acceptance)

    def _step(self, rows: int, batch: int) -> float:
        return self.target.pass_time(rows, batch) + (0.0 if self.target.device.measured else STEP)

    def _draft_time(self, batch: int) -> float:
        if self.draft is None:
            return 0.0
        return self.draft.pass_time(batch, batch) + (0.0 if self.draft.device.measured else DRAFT)
