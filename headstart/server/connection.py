"""One HTTP connection: what cannot be read as a request is answered in the shape of all other errors."""

from __future__ import annotations

import json
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headstart.server.errors import ApiError, invalid

MAX_HEADERS = 32 << 10  # bytes of the first line and all headers


class Connection(H11Protocol):
    """uvicorn's, but for the one answer that it gives itself."""

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles h11's error, which knows whether the headers are too long."""
        error = _named(sys.exception())
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else the answer to a request has begun, and this one is cut off
            body = json.dumps(error.body()).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            events = (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


def _named(error: BaseException | None) -> ApiError:
    if getattr(error, "error_status_hint", 400) == 431:
        return ApiError(431, f"the headers are longer than {MAX_HEADERS} bytes: send less", "invalid_request_error")
    return invalid("this is not an HTTP request that can be read")
