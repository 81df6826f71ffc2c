"""The report on a terminal. Draws the document of `summary`, measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from headstart.bench.sheets import headline, setting, sheets
from headstart.forms.table import stdout, table


def tables(found: Mapping[str, Any]) -> None:
    """Print the report on stdout."""
    console = stdout()
    for line in headline(found):
        console.print(line, markup=False)
    console.print()
    parts = sheets(found)
    for name, each in parts:
        if name and len(parts) > 2:
            console.rule(name, align="left", style="dim")
        for sheet in each:
            console.print(table(sheet, console.width))
    for line in found["notes"]:
        console.print(f"note: {line}", markup=False, style="dim")
    for v in found["verdicts"]:
        console.print(Text("PASS " if v["passed"] else "FAIL ", "bold green" if v["passed"] else "bold red"), end="")
        console.print(f"{v['arm']}, {setting(v)}: {v['words']}", markup=False)
    if not found["verdicts"]:
        console.print("no verdict: nothing was measured to the end")
