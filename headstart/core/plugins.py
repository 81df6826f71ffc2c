"""Drafters of others: where a method name that is not ours points to. Finds names, imports nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "headstart.drafters"

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")


def is_dotted(method: str) -> bool:
    """Whether a method reads "package.module:Name"."""
    return _DOTTED.fullmatch(method) is not None


def foreign_names() -> list[str]:
    """The names that installed packages registered as drafters."""
    from importlib.metadata import entry_points  # late: a tenth of the time of --help

    return sorted(entry.name for entry in entry_points(group=GROUP))


def foreign_method(method: object) -> EntryPoint | None:
    """Where "package.module:Name" or a registered name points; None when it is neither."""
    if not isinstance(method, str):
        return None
    from importlib.metadata import EntryPoint, entry_points

    if is_dotted(method):
        return EntryPoint(method, method, GROUP)
    return next(iter(entry_points(group=GROUP, name=method)), None)
