"""What a plan is asked for."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from headstart.plan.device import Device
from headstart.plan.shape import Shape

# int4 with a scale and a zero point for every 128 weights, as AWQ and GPTQ store it.
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 4.25 / 8}
KV_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0}
LOOKUPS = ("ngram", "suffix")  # drafts that cost nothing and no memory


@dataclass(frozen=True)
class Ask:
    """What a plan is for. `context`: tokens of a sequence. `devices`, `batch`: None leaves them to the plan."""

    target: Shape
    source: str
    draft: Shape | None
    draft_name: str | None  # as the user wrote it
    k: int
    device: Device
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    context: int = 4096
    devices: int | None = None
    batch: int | None = None
    share: float = 0.9
    block_size: int = 16
    alphas: Seq[tuple[str, Seq[float]]] = ()  # (in words, acceptance by position)
