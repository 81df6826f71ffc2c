"""The width curve: how long a target pass takes by its rows. What speculation can gain at all is decided here."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from headstart.api import LLM
from headstart.runtime import width

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32)
CONTEXT = 128
_SECONDS = 12.0


def measure(llm: LLM, widths: Seq[int] = WIDTHS, batch: int = 1, stop: Callable[[], bool] = lambda: False) -> dict[int, float]:
    """`runtime.width.measure` of a loaded engine, which must be idle, at leisure and after `CONTEXT` tokens."""
    engine = llm.engine
    engine.pool.forget()  # the blocks are written to: nothing may be found in them afterwards
    return width.measure(engine.target, engine.pool.num_blocks, widths, batch=batch, context=CONTEXT, seconds=_SECONDS, stop=stop)
