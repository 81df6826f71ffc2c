"""The one thread that steps the engine, and the tickets that requests wait on.

Every change to the engine happens on this thread, between two steps: requests come in and are taken out through an inbox. So an
abort frees its blocks before the next pass. A ticket holds the latest output only, made when its reader has taken the
one before: a slow reader costs no memory and no other request a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headstart.core.errors import ConfigError
from headstart.core.outputs import RequestOutput
from headstart.core.params import SamplingParams
from headstart.engine.step import Engine
from headstart.runtime.runner import Feed
from headstart.server.errors import ApiError, busy, internal, invalid, refused, unavailable

if TYPE_CHECKING:
    from headstart.engine.request import Request
    from headstart.ops.grammar import Grammar

log = logging.getLogger("headstart.server")


class Observer(Protocol):
    """What is told of the engine's life; called on the engine thread."""

    def stepped(self, engine: Engine, touched: list[Request]) -> None: ...

    def finished(self, request: Request) -> None: ...

    def idle(self) -> None: ...


class Ticket:
    """One engine request as its reader sees it. The reader lives on the event loop; `latest` and `error` come from the engine thread.

    ready: set when there is something to take; tickets of one HTTP request may share it. salt: who may share its prefix.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        ids: list[int],
        params: SamplingParams,
        *,
        ready: asyncio.Event,
        streams: bool = False,
        salt: bytes = b"",
        grammar: Grammar | None = None,
    ) -> None:
        self.id, self.prompt, self.ids, self.params, self.streams = request_id, prompt, ids, params, streams
        self.salt, self.grammar = salt, grammar
        self.ready, self.error, self.latest = ready, None, None  # type: asyncio.Event, ApiError | None, RequestOutput | None
        self._wanted, self._fresh = True, False
        self._admitted = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def admitted(self) -> None:
        """Return once the engine has taken the request. Raises ApiError when it did not."""
        await self._admitted.wait()
        if self.error is not None:
            raise self.error

    def take(self) -> RequestOutput | None:
        """The newest output, if it was not taken yet; the last one is finished. Raises ApiError when the request failed."""
        if self.error is not None:
            raise self.error
        if not self._fresh:
            return None
        self._fresh, self._wanted = False, True
        return self.latest

    # -- on the engine thread ----------------------------------------------------------------------------------------

    def admit(self) -> None:
        """The engine has it."""
        self._call(self._admitted.set)

    def show(self, request: Request) -> None:
        """Offer the state of a request, if there is reason to."""
        if request.finished or (self.streams and self._wanted):
            self._wanted = False
            output = request.output()
            self._call(self._put, output)

    def fail(self, error: ApiError) -> None:
        """End it with an error."""
        self._call(self._put_error, error)

    def _put(self, output: RequestOutput) -> None:
        self.latest, self._fresh = output, True
        self.ready.set()

    def _put_error(self, error: ApiError) -> None:
        self.error = error
        self._admitted.set()
        self.ready.set()

    def _call(self, what: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has gone, and every reader with it
            self._loop.call_soon_threadsafe(what, *arguments)


class EngineLoop:
    """Invariant: only the engine thread calls the engine; `tickets` holds every request that has not ended."""

    def __init__(self, engine: Engine, observer: Observer, max_queue: int, on_death: Callable[[], None] | None = None) -> None:
        self.engine, self.observer, self.on_death = engine, observer, on_death
        self.capacity = engine.scheduler.max_num_seqs + max_queue  # sequences that run or wait
        self.held = 0  # of these, reserved by requests that have not ended; event loop only
        self.tickets: dict[str, Ticket] = {}  # engine thread only
        self.dead = False
        self.steps = 0
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._suspects: set[str] = set()  # requests of a pass that failed: each runs alone until it has ended
        self._width = engine.scheduler.max_num_seqs
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """Abort what is left and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # -- called on the event loop ----------------------------------------------------------------------------------

    def reserve(self, sequences: int) -> None:
        """Hold room for a request's sequences, until `give_back`. Raises ApiError when there is none."""
        if self.dead:
            raise unavailable("broken")
        if sequences > self.capacity:
            raise invalid(f"{sequences} sequences are asked for at once, the server holds {self.capacity}: send several requests", "n")
        if self.held + sequences > self.capacity:
            raise busy(self.capacity)
        self.held += sequences

    def give_back(self, sequences: int) -> None:
        """End a reservation."""
        self.held -= sequences

    def submit(self, ticket: Ticket) -> None:
        """Queue a request."""
        self._do(lambda: self._add(ticket))

    def abort(self, ticket: Ticket) -> None:
        """End a request before the next step; nothing happens when it has ended."""
        self._do(lambda: self._abort(ticket))

    def _do(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    # -- the engine thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException:
            log.exception("the engine thread died")
            self._die()

    def _turn(self) -> bool:
        with self._wake:
            while not (self._inbox or self._closing or self.engine.has_work):
                self._wake.wait()
            actions, self._inbox = self._inbox, deque()
        for action in actions:
            action()
        if self._closing:
            for ticket in list(self.tickets.values()):
                self._abort(ticket)
                ticket.fail(unavailable("stopping"))
            return False
        if self.engine.has_work:
            self._step()
        else:
            self.observer.idle()
        return not self.dead

    def _step(self) -> None:
        try:
            touched = self.engine.step()
        except BaseException:  # libraries in Rust raise their own kinds
            log.exception("a pass failed")
            self._isolate()
            return
        self.steps += 1
        self.observer.stepped(self.engine, touched)
        for request in touched:
            ticket = self.tickets.get(request.id)
            if ticket is None:
                continue
            ticket.show(request)
            if request.finished:
                self._forget(request.id)
                self.observer.finished(request)

    def _add(self, ticket: Ticket) -> None:
        if self.dead:
            ticket.fail(unavailable("broken"))
            return
        try:
            self.engine.add(ticket.id, ticket.prompt, ticket.ids, ticket.params, salt=ticket.salt, grammar=ticket.grammar)
        except ConfigError as e:
            ticket.fail(refused(str(e), SamplingParams.__dataclass_fields__))
        except Exception:
            log.exception("request %s could not be added", ticket.id)
            ticket.fail(internal())
        else:
            self.tickets[ticket.id] = ticket
            ticket.admit()

    def _abort(self, ticket: Ticket) -> None:
        if self.tickets.get(ticket.id) is ticket:
            request = self.engine.abort(ticket.id)
            self._forget(ticket.id)
            if request is not None:
                self.observer.finished(request)

    def _forget(self, request_id: str) -> None:
        self.tickets.pop(request_id, None)
        self._suspects.discard(request_id)
        if not self._suspects:
            self.engine.scheduler.max_num_seqs = self._width

    def _isolate(self) -> None:
        """After a pass that raised: nobody knows whose fault it was, so those in it go on one at a time.

        One that fails alone is to blame and ends; the others never notice more than the delay.
        """
        alone = len(self.engine.scheduler.running) <= 1
        running = {seq.request_id for seq in self.engine.scheduler.running}
        self.engine.recover()
        if alone:
            for request_id in running:
                ticket = self.tickets.get(request_id)
                if ticket is not None:
                    self._abort(ticket)
                    ticket.fail(internal())
            if not running or not self._works():
                self._die()
        else:
            self._suspects |= running
            self.engine.scheduler.max_num_seqs = 1

    def _works(self) -> bool:
        """Whether the model still runs, tried on one token in a block that nobody holds."""
        engine, table, local = self.engine, [], []  # type: Engine, list[int], list[int]
        held = [(engine.pool, table)] + ([] if engine.pool.local is None else [(engine.pool.local, local)])
        try:
            if not all(pool.grow(blocks, 1) for pool, blocks in held):
                return True
            engine.target.forward([Feed([0], 0, table, 1, local=local)])
        except BaseException:
            log.exception("a pass of one token failed too")
            return False
        finally:
            for pool, blocks in held:
                pool.trim(blocks, 0)
        return True

    def _die(self) -> None:
        self.dead = True
        for ticket in self.tickets.values():
            ticket.fail(unavailable("broken"))
        self.tickets.clear()
        log.error("the engine is broken: every request is refused from now on")
        if self.on_death is not None:
            self.on_death()

    def wait_idle(self, timeout: float) -> bool:
        """Block until no request is left (tests and scripts)."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if not self.tickets and not self._inbox and not self.engine.has_work:
                return True
            time.sleep(0.01)
        return False
