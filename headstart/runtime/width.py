"""The width curve of a loaded model: how long a pass takes by its rows, measured once for a model on a machine and kept.

Knows the folder of caches. What is kept only tells a pace where to start: a file that is lost, damaged or stale costs speed, no token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch

from headstart.core.folders import cache_folder
from headstart.kernels.library import active
from headstart.ops.device import device_name
from headstart.runtime.runner import Feed, Runner

WIDTHS = (1, 2, 4, 8, 16)
_SECONDS = 0.5  # what a start may spend on it
_CONTEXT = 16
_ROUNDS = 5
_SMALL = 16 << 20  # bytes of weights below which a pass takes about a millisecond: running steps tell as soon


def measure(
    target: Runner,
    blocks: int,
    widths: Seq[int],
    *,
    batch: int = 1,
    context: int = _CONTEXT,
    seconds: float = _SECONDS,
    stop: Callable[[], bool] = lambda: False,
) -> dict[int, float]:
    """Median seconds of a pass of `batch` sequences that feed m rows each, logits of every row included, for each m.

    Every sequence has `context` tokens before (fewer in a short context). Widths are taken in turns, so that drift of the
    machine falls on all of them; no further pass is begun after so many `seconds`. Widths and sequences that do not fit or
    were not reached are left out; {} after `stop()`. Writes to the first of the `blocks`: nothing of worth may be in them.
    """
    context = max(1, min(context, target.max_len - max(widths)))
    each = -(-(context + max(widths)) // target.block_size)
    batch = min(batch, blocks // each)
    widths = [m for m in widths if m + context <= target.max_len]
    if not batch or not widths:
        return {}
    tables = [list(range(i * each, (i + 1) * each)) for i in range(batch)]
    tokens = [i % target.vocab for i in range(context + max(widths))]

    def took(start: int, rows: int) -> float:
        began = time.perf_counter()
        logits = target.forward([Feed(tokens[start : start + rows], start, table, rows) for table in tables])
        float(logits[0][-1, -1])  # another device is waited for
        return time.perf_counter() - began

    began = time.perf_counter()
    took(0, context)  # what is seen afterwards, and what warms up
    times: dict[int, list[float]] = {}
    for _ in range(_ROUNDS):
        for m in widths:
            if stop():
                return {}
            if times and time.perf_counter() - began > seconds:
                break
            times.setdefault(m, []).append(took(context, m))
    return {m: statistics.median(t) for m, t in times.items()}


def known_curve(target: Runner, blocks: int, widths: Seq[int] = WIDTHS) -> dict[int, float]:
    """Seconds of a pass by its rows, as kept from an earlier start or else measured now; {} where that is not worth it.

    The engine must be idle, and none of the first blocks in use.
    """
    if not _worth_it(target):
        return {}
    curve = _kept(target)
    if not set(widths) <= set(curve):
        curve |= measure(target, blocks, widths)
        keep(target, curve)
    return curve


def keep(target: Runner, curve: Mapping[int, float]) -> None:
    """Remember the curve of this model on this machine; where nothing can be written, the next start measures again."""
    if not _worth_it(target) or not curve:
        return
    path = _file(target)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="width-")
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump({"of": _facts(target), "seconds": dict(curve)}, f, indent=1)
        os.replace(name, path)


def _worth_it(target: Runner) -> bool:
    return getattr(target.model, "weight_bytes", 0) >= _SMALL


def _kept(target: Runner) -> dict[int, float]:
    """What the file says; {} without one, and where it is damaged or of something else."""
    try:
        found = json.loads(_file(target).read_text(encoding="utf-8"))
        curve = {int(rows): float(seconds) for rows, seconds in found["seconds"].items()}
        whole = found["of"] == _facts(target) and all(m > 0 and 0 < s < math.inf for m, s in curve.items())
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return {}
    return curve if whole else {}


def _file(target: Runner) -> Path:
    name = hashlib.sha256(json.dumps(_facts(target)).encode()).hexdigest()[:16]
    return cache_folder() / f"width-{name}.json"


def _facts(target: Runner) -> dict[str, Any]:
    """All that the curve depends on."""
    model: Any = target.model
    serves = active()
    return {
        "model": f"{type(model).__name__} {model.config}",
        "weight_bytes": model.weight_bytes,
        "dtype": str(model.dtype),
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernels": f"{serves.path} {serves.built}",
    }
