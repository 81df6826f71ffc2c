"""The report on a terminal, and the progress bar before it. Draws the document of `summary`, measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from headstart.bench.sheets import Sheet, headline, setting, sheets

_PIPE_WIDTH = 120


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


def tables(found: Mapping[str, Any]) -> None:
    """Print the report on stdout."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    for line in headline(found):
        console.print(line, markup=False)
    console.print()
    parts = sheets(found)
    for name, each in parts:
        if name and len(parts) > 2:
            console.rule(name, align="left", style="dim")
        for sheet in each:
            console.print(_table(sheet, console.width))
    for line in found["notes"]:
        console.print(f"note: {line}", markup=False, style="dim")
    for v in found["verdicts"]:
        console.print(Text("PASS " if v["passed"] else "FAIL ", "bold green" if v["passed"] else "bold red"), end="")
        console.print(f"{v['arm']}, {setting(v)}: {v['words']}", markup=False)
    if not found["verdicts"]:
        console.print("no verdict: nothing was measured to the end")


def _table(sheet: Sheet, room: int) -> Table:
    table = Table(title=sheet.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=room < 110)
    for i, name in enumerate(sheet.heads):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)  # names give way, figures do not
    for row in sheet.rows:
        table.add_row(*map(Text, row))
    return table
