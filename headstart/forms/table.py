"""Sheets on a terminal, and the progress bar before them."""

from __future__ import annotations

import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from headstart.forms.sheet import Sheet

_PIPE_WIDTH = 120


def stdout() -> Console:
    """Where reports are printed: wide enough for their tables where that is no terminal."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    return console


class Progress:
    """A context: what is going on and the time left, on stderr; nothing where that is no terminal, or when quiet."""

    def __init__(self, total: int, quiet: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self.bar = Bar(*columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal)
        self.total, self.task = total, self.bar.add_task("", total=None)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        """Name the stage; only answers are counted, so only they have a time left."""
        self.bar.update(self.task, description=text, total=self.total if text == "answers" else None)

    def step(self, n: int) -> None:
        """n more answers are done."""
        self.bar.advance(self.task, n)


def table(sheet: Sheet, room: int) -> Table:
    """A sheet in a terminal of `room` columns."""
    out = Table(title=sheet.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=room < 110)
    for i, name in enumerate(sheet.heads):
        out.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)  # names give way, figures do not
    for row in sheet.rows:
        out.add_row(*map(Text, row))
    return out
