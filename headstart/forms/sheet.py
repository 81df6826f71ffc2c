"""A table in words, the same for terminal and page; and how figures are written in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Sheet:
    """A titled table of words: the first column names the row, the others are figures."""

    def __init__(self, title: str, *heads: str) -> None:
        self.title, self.heads = title, heads
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """One row."""
        self.rows.append(cells)


def ms(seconds: float | None) -> str:
    """Milliseconds."""
    return "-" if seconds is None else f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"


def gain(interval: Mapping[str, Any] | None, times: str = "x") -> str:
    """A speed-up with its interval."""
    if interval is None:
        return "-"
    span = f" [{interval['low']:.2f}, {interval['high']:.2f}]" if interval["low"] is not None else ""
    return f"{interval['median']:.2f}{times}{span}"


def share(value: float | None) -> str:
    """Per cent."""
    return "-" if value is None else f"{100 * value:.0f} %"


def rate(value: float | None) -> str:
    """Per second."""
    return "-" if value is None else f"{value:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """A plain number."""
    return "-" if value is None else f"{value:.{digits}f}"
