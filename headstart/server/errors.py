"""Errors as OpenAI clients read them: `{"error": {"message", "type", "param", "code"}}` with a status."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

_NAME = re.compile(r"[a-z_]+(?=[=:\[ ])")


class ApiError(Exception):
    """What a client is told. Shown as it stands, so the message holds nothing of the server's inside."""

    def __init__(
        self, status: int, message: str, kind: str, param: str | None = None, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code, self.headers = status, kind, param, code, headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, "invalid_request_error", param, code)


def refused(message: str, fields: Container[str]) -> ApiError:
    """400 from a ConfigError of the engine, whose message begins with the field it is about."""
    found = _NAME.match(message)
    return invalid(message, found[0] if found and found[0] in fields else None)


def unknown_model(name: str, served: str) -> ApiError:
    """404."""
    return ApiError(404, f"model {name[:200]!r} is not served here: use {served!r}", "invalid_request_error", "model", "model_not_found")


def busy(limit: int) -> ApiError:
    """429: nothing is wrong with the request, there is no room to wait in."""
    message = f"the queue is full ({limit} sequences run or wait): try again in a moment"
    return ApiError(429, message, "rate_limit_error", code="queue_full", headers={"Retry-After": "1"})


def unavailable(state: str) -> ApiError:
    """503: loading, stopping or dead."""
    return ApiError(503, f"the server is {state}", "service_unavailable", code=state, headers={"Retry-After": "5"})


def timed_out(seconds: float) -> ApiError:
    """504; asking again would only take as long again, so clients are told not to retry."""
    message = f"the request did not end within {seconds:g} seconds: ask for fewer tokens or raise --request-timeout"
    return ApiError(504, message, "timeout_error", code="timeout", headers={"x-should-retry": "false"})


def internal(message: str = "internal error: the server's log has the details under this request id") -> ApiError:
    """500."""
    return ApiError(500, message, "internal_error", code="internal_error")
