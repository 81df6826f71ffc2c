"""The width curve: how long a target pass takes by its rows. What speculation can gain at all is decided here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from headstart.api import LLM
from headstart.runtime.runner import Feed

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32)
CONTEXT = 128
_ROUNDS = 5
_SECONDS = 12.0  # after so long, no further round is begun


def measure(llm: LLM, widths: Seq[int] = WIDTHS, batch: int = 1, stop: Callable[[], bool] = lambda: False) -> dict[int, float]:
    """Median seconds of a pass of `batch` sequences that feed m rows each, logits of every row included, for each m.

    Every sequence has `CONTEXT` tokens before (fewer in a short context). Widths are taken in turns, so that drift of the
    machine falls on all of them. Widths and sequences that do not fit are left out. The engine must be idle.
    """
    engine, size = llm.engine, llm.engine.pool.block_size
    context = max(1, min(CONTEXT, engine.target.max_len - max(widths)))
    each = -(-(context + max(widths)) // size)
    batch = min(batch, engine.pool.num_blocks // each)
    widths = [m for m in widths if m + context <= engine.target.max_len]
    if not batch or not widths:
        return {}
    engine.pool.forget()  # the blocks are written to: nothing may be found in them afterwards
    tables = [list(range(i * each, (i + 1) * each)) for i in range(batch)]
    tokens = [i % engine.target.vocab for i in range(context + max(widths))]
    for table in tables:
        engine.target.forward([Feed(tokens[:context], 0, table, 0)])
    times: dict[int, list[float]] = {m: [] for m in widths}
    began = time.perf_counter()
    for round_ in range(_ROUNDS + 1):
        for m in widths:
            if stop():
                return {}
            start = time.perf_counter()
            engine.target.forward([Feed(tokens[context : context + m], context, table, m) for table in tables])
            times[m].append(time.perf_counter() - start)
        if round_ and time.perf_counter() - began > _SECONDS:
            break
    return {m: statistics.median(t[1:] or t) for m, t in times.items()}  # the first round warms up
