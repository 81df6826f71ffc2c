"""What every request passes before a route sees it: host, key, request id; and what becomes of a bug. Pure ASGI, so that
routes keep the connection's own `receive` and notice a client that leaves."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from headstart.server.errors import ApiError, internal, invalid
from headstart.server.settings import Settings

log = logging.getLogger("headstart.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")


def same_key(given: str, keys: tuple[str, ...]) -> str | None:
    """The configured key that equals the given one; every key is compared, each in constant time."""
    found = None
    digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
    for key in keys:
        if hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()):
            found = key
    return found


def given_key(header: str) -> str:
    """The key in an Authorization header: a Bearer token, or the password of Basic, which browsers can send."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("utf-8", "surrogateescape").partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


def host_of(header: str) -> str:
    """The host in a Host header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0].lstrip("[").lower()
    return header.partition(":")[0].lower()


class Guard:
    """Middleware. Invariant: with keys configured, no route but /health (and /metrics where it is open) runs without one."""

    def __init__(self, app: App, settings: Settings, count_refused: Callable[[int], None]) -> None:
        self.app, self.settings, self.count_refused = app, settings, count_refused
        self.hosts = {h.lower() for h in settings.allowed_hosts}
        if not self.hosts and _is_loopback(settings.host):
            self.hosts = {"localhost", "127.0.0.1", "::1", settings.host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # websockets are not served; the connection is closed
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"authorization", b"x-request-id")}
        asked = headers.get(b"x-request-id", b"")
        request_id = asked.decode() if _REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def tagged(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                if message["status"] >= 400:
                    self.count_refused(message["status"])
            await send(message)

        try:
            self._check(scope, headers)
            await self.app(scope, receive, tagged)
        except ApiError as e:
            await _answer(tagged, e)
        except Exception:
            log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            if not started:
                await _answer(tagged, internal())

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raises ApiError 400 on a foreign Host (a page elsewhere that renamed itself to this machine), 401 without a key."""
        host = host_of(headers.get(b"host", b"").decode("latin-1"))
        if self.hosts and host not in self.hosts:
            raise invalid(
                f"host {host[:100]!r} is not served here: start the server with --allowed-host {host[:100]}", code="host_not_allowed"
            )
        path = scope["path"]
        if not self.settings.api_keys or path == "/health" or (path == "/metrics" and self.settings.open_metrics):
            return
        key = same_key(given_key(headers.get(b"authorization", b"").decode("latin-1")), self.settings.api_keys)
        if key is None:
            # A browser that opens the page asks its user; programs are told what they know.
            challenge = 'Basic realm="headstart: any name, the API key as password"' if path == "/" else "Bearer"
            message = "the API key is missing or wrong: send Authorization: Bearer KEY"
            raise ApiError(401, message, "authentication_error", code="invalid_api_key", headers={"WWW-Authenticate": challenge})
        # Who shares a prefix cache. Clients cannot choose it beyond their own key.
        scope["state"]["owner"] = hashlib.sha256(key.encode()).digest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _answer(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")]  # its body was not read
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
