"""Drafters of others: where a method name that is not ours points to. Finds names, imports nothing."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points

GROUP = "headstart.drafters"

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")


def is_dotted(method: str) -> bool:
    """Whether a method reads "package.module:Name"."""
    return _DOTTED.fullmatch(method) is not None


def foreign_names() -> list[str]:
    """The names that installed packages registered as drafters."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def foreign_method(method: object) -> EntryPoint | None:
    """Where "package.module:Name" or a registered name points; None when it is neither."""
    if not isinstance(method, str):
        return None
    if is_dotted(method):
        return EntryPoint(method, method, GROUP)
    return next(iter(entry_points(group=GROUP, name=method)), None)
