"""Work on threads of its own, that neither an exit nor other work need wait for, as they would for those of asyncio's pool."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


def in_thread(work: Callable[[], Made]) -> asyncio.Future[Made]:
    """The result of something long that an exit need not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Made] = loop.create_future()

    def settle(results: list[Made], error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(results[0])

    def run() -> None:
        results, error = [], None
        try:
            results.append(work())
        except BaseException as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the event loop has gone
            loop.call_soon_threadsafe(settle, results, error)

    threading.Thread(target=run, daemon=True).start()
    return future
