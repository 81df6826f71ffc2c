"""Checks of single values, with errors that name the argument, the value and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.core.errors import ConfigError, nearest

QUANTIZATIONS = ("int8", "int4")


def number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """A finite real number in [low, high], or (low, high]."""
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not ok or not low <= value <= high or (open_low and value == low):  # NaN fails every comparison
        raise ConfigError(f"{name}={value!r} must be a number in {'(' if open_low else '['}{low:g}, {high:g}]")


def integer(name: str, value: Any, low: int, high: int) -> None:
    """A whole number in [low, high]; True and False are not numbers."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name}={value!r} must be an integer from {low} to {high}")


def text(name: str, value: Any) -> None:
    """None, or a string that is not empty."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{name}={value!r} must be a non-empty string")


def quantization(name: str, value: Any) -> None:
    """None, or how weights are quantised at load."""
    if value is not None and value not in QUANTIZATIONS:
        raise ConfigError(f"{name}={value!r} is not available: {nearest(str(value), QUANTIZATIONS)}")


def flag(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be True or False")


def put_once(out: dict[str, Any], name: str, value: Any, said: str) -> None:
    """out[name] = value; a ConfigError where another spelling, not `said`, has put another value there."""
    if name in out and out[name] != value:
        raise ConfigError(f"{said}={value!r} contradicts {name}={out[name]!r}: leave one of them out")
    out[name] = value


def check_prompt(ids: Sequence[int], vocab: int, limit: int) -> None:
    """Raises ConfigError for a prompt that is empty, leaves no room in a context of `limit`, or holds what is no id below `vocab`."""
    if not ids:
        raise ConfigError("the prompt is empty: give at least one token")
    if len(ids) >= limit:
        raise ConfigError(
            f"the prompt has {len(ids)} tokens, the context {limit} with room for at least one new: shorten it or raise max_model_len"
        )
    bad = next((t for t in ids if not isinstance(t, int) or isinstance(t, bool) or not 0 <= t < vocab), None)
    if bad is not None:
        raise ConfigError(f"prompt token id {bad!r} is not an id of the vocabulary (0..{vocab - 1})")
