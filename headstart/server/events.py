"""Server-sent events over one HTTP response: pings in silence, an end when the client leaves, cleanup in every case."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response

from headstart.server.errors import ApiError, timed_out
from headstart.server.guard import Receive, Scope, Send

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(content: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n\n"


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A streamed answer. `cleanup` runs once, whatever happens, even when nothing could be sent."""

    def __init__(self, events: AsyncIterator[bytes], cleanup: Callable[[], None], timeout: float | None) -> None:
        super().__init__()
        self.events, self.cleanup, self.timeout = events, cleanup, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            done, _ = await asyncio.wait({writer, gone}, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await _end(writer)
                self.cleanup()
                assert self.timeout is not None
                await asyncio.wait_for(self._fail(send, timed_out(self.timeout)), 5)
            elif writer in done:
                writer.result()
        finally:
            self.cleanup()
            await _end(writer)
            await _end(gone)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        try:
            async for data in self.events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except ApiError as e:
            await self._fail(send, e)
        else:
            await send({"type": "http.response.body", "body": DONE})

    @staticmethod
    async def _fail(send: Send, error: ApiError) -> None:
        await send({"type": "http.response.body", "body": event(error.body()) + DONE})


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait until it is gone."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
