"""From settings to a process that serves: listen first, load behind it, drain on a signal. Knows uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from headstart.core.errors import ConfigError
from headstart.server.app import create_app
from headstart.server.connection import MAX_HEADERS, Connection
from headstart.server.service import Service
from headstart.server.settings import Settings
from headstart.server.threads import in_thread

if TYPE_CHECKING:
    from headstart.api import LLM

log = logging.getLogger("headstart.server")

_MAX_CONNECTIONS = 2048


class Server(uvicorn.Server):
    """uvicorn, with a drain: the first signal lets running requests end while new ones get 503, the second one exits at once."""

    def __init__(self, service: Service, load: Callable[[], LLM], ready: Callable[[str], None]) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                create_app(service),
                host=settings.host,
                port=settings.port,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADERS,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
            )
        )
        self.service, self.load, self.ready = service, load, ready
        self.failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        service.on_death = self._broken

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._aio = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._open()), asyncio.create_task(self._log())]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        self.service.stop()
        await asyncio.to_thread(self.service.close)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.state == "ready" and not self.force_exit:
            self.service.stop()
            log.info("stopping: running requests go on, new ones are refused; a second signal exits at once")
            self._aio.call_soon_threadsafe(self._begin_drain)
        else:
            self.should_exit = self.force_exit = True

    def _begin_drain(self) -> None:
        self._tasks.append(asyncio.create_task(self._drain()))

    async def _drain(self) -> None:
        await self.service.drained()
        self.should_exit = True

    async def _open(self) -> None:
        """Load on a thread of its own; a model that cannot be loaded ends the server with its error."""
        try:
            llm = await in_thread(self.load)
            if self.service.state == "loading":
                self.service.open(llm)
                self.ready(self.url)
        except asyncio.CancelledError:
            raise
        except BaseException as e:
            self.failure = e
            self.should_exit = True

    async def _log(self) -> None:
        while True:
            await asyncio.sleep(self.service.settings.log_interval)
            if hasattr(self.service, "metrics"):
                for line in self.service.metrics.interval.lines():
                    log.info(line)

    def _broken(self) -> None:
        self.failure = self.failure or RuntimeError("the engine is broken, the log says how")
        self.should_exit = True

    @property
    def url(self) -> str:
        """Where the server answers, with the port it really has."""
        port = self.servers[0].sockets[0].getsockname()[1] if self.servers else self.service.settings.port
        host = self.service.settings.host
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{host}:{port}"


def listen(settings: Settings) -> socket.socket:
    """A socket bound before anything is loaded. Raises ConfigError when the address is taken or is not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except (OSError, OverflowError) as e:
        sock.close()
        why = getattr(e, "strerror", None) or str(e)
        raise ConfigError(f"--host {settings.host} --port {settings.port} cannot be listened on ({why}): choose another port") from None
    return sock


def serve(settings: Settings, load: Callable[[], LLM], ready: Callable[[str], None]) -> None:
    """Serve until a signal. Raises what `load` raises, and RuntimeError when the engine broke."""
    sock = listen(settings)
    server = Server(Service(settings), load, ready)
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()
    if server.failure is not None:
        raise server.failure
