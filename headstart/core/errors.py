"""The errors a user may see. Each message names the argument, its value, the limit, and what to try next."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class HeadstartError(Exception):
    """Something the user can act on: shown as one line, never as a traceback."""


class ConfigError(HeadstartError, ValueError):
    """An argument is unknown, contradictory or out of range."""


class ModelError(HeadstartError):
    """A checkpoint, tokenizer or file cannot be used."""


class EngineError(HeadstartError):
    """An engine in another process could not be started, or has gone."""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says; its class where it says nothing."""
    words = str(error).strip()
    return words.splitlines()[0] if words else type(error).__name__


def nearest(name: str, valid: Iterable[str]) -> str:
    """Words that point from a mistyped name to the closest valid one; all of them when none is close."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name.lower(), valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(valid)}"


def names_nearest(cls: type[T]) -> type[T]:
    """Class decorator for a dataclass: an unknown keyword becomes a ConfigError that names the nearest field."""
    init: Any = cls.__init__

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        valid = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in kwargs:
            if name not in valid:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}: {nearest(name, valid)}")
        init(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[method-assign]
    return cls
