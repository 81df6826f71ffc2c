"""What a server is told. Plain data, no libraries."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.core.checks import integer, number
from headstart.core.errors import ConfigError, nearest
from headstart.server.limits import Limits

METRICS_LEVELS = ("none", "summary", "detailed")


@dataclass(frozen=True)
class Settings:
    """One server. Raises ConfigError on a value out of range.

    max_queue: sequences that may wait beside those that run; one more is a 429. request_timeout: seconds from arrival to the
    last byte, None for no limit. keep_alive: seconds of silence after which a stream sends a comment. drain_seconds: how
    long a stopping server lets running requests go on. allowed_hosts: Host headers that are answered; empty allows any.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_name: str = "model"
    api_keys: tuple[str, ...] = ()
    open_metrics: bool = False
    max_queue: int = 256
    request_timeout: float | None = 600.0
    keep_alive: float = 10.0
    drain_seconds: float = 60.0
    log_interval: float = 10.0
    metrics_prefix: str = "headstart:"
    request_metrics: str = "summary"
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        integer("port", self.port, 0, 65535)
        integer("max_queue", self.max_queue, 0, 1 << 20)
        for name in ("keep_alive", "drain_seconds", "log_interval"):
            number(name, getattr(self, name), 0.0, 1e6, open_low=True)
        if self.request_timeout is not None:
            number("request_timeout", self.request_timeout, 0.0, 1e9, open_low=True)
        if self.request_metrics not in METRICS_LEVELS:
            raise ConfigError(f"per_request_spec_decode_metrics={self.request_metrics!r}: {nearest(self.request_metrics, METRICS_LEVELS)}")
        if any(not key or not key.isascii() or not key.isprintable() for key in self.api_keys):
            raise ConfigError("an API key is empty or holds characters that no HTTP header can carry: use printable ASCII")
        if not all(c.isascii() and (c.isalnum() or c in "_:") for c in self.metrics_prefix) or self.metrics_prefix[:1].isdigit():
            raise ConfigError(f"metrics_prefix={self.metrics_prefix!r} must be letters, digits, _ and :, as in 'vllm:'")
