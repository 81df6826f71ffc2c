"""Grammars are compiled before a request reaches the engine, on threads of their own and within a limit: a schema can be small and take
half a minute, and nobody else may wait for it.

The library cannot be stopped, so what takes too long runs on unheard; at most `_AT_ONCE` such threads exist.
"""

from __future__ import annotations

import asyncio

from headstart.core.errors import ConfigError
from headstart.core.params import StructuredOutputsParams
from headstart.ops.grammar import Grammar, GrammarCompiler
from headstart.server.errors import ApiError, invalid
from headstart.server.threads import in_thread

_AT_ONCE = 2


class Grammars:
    """Invariant: `free` has as many permits as `_AT_ONCE` less the threads that compile."""

    def __init__(self, compiler: GrammarCompiler, seconds: float) -> None:
        self.compiler, self.seconds = compiler, seconds
        self.free = asyncio.Semaphore(_AT_ONCE)

    async def compile(self, wanted: StructuredOutputsParams, field: str) -> Grammar:
        """The grammar that a field of a request asks for. Raises ApiError 400 when it is wrong or takes too long, 429 when others do."""
        known = self.compiler.known(wanted)
        if known is not None:
            return known
        try:
            await in_thread(self.compiler.table)  # made once for all, and not at the expense of the first
            await self._permit(field)
            work = in_thread(lambda: self.compiler.compile(wanted))
            work.add_done_callback(self._done)
            return await asyncio.wait_for(asyncio.shield(work), self.seconds)
        except TimeoutError:
            raise invalid(f"{field}: it does not compile within {self.seconds:g} seconds: ask for something simpler", field) from None
        except ConfigError as e:
            raise invalid(f"{field}: {str(e).removeprefix('structured_outputs ')}", field) from None

    async def _permit(self, field: str) -> None:
        try:
            await asyncio.wait_for(self.free.acquire(), self.seconds)
        except TimeoutError:
            message = f"{field}: other grammars are being compiled: try again in a moment"
            raise ApiError(429, message, "rate_limit_error", field, "queue_full", {"Retry-After": "5"}) from None

    def _done(self, work: asyncio.Future[Grammar]) -> None:
        self.free.release()
        if not work.cancelled():
            work.exception()  # nobody may be there to read it
