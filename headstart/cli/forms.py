"""What becomes of the figures of a report: the options, and the writing. `bench` and `analyse` share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from headstart.cli.show import note
from headstart.core.errors import ConfigError

if TYPE_CHECKING:
    from headstart.forms.chart import Chart


@dataclass
class FormOptions:
    """What becomes of the figures."""

    out: Annotated[str | None, Option("--out", "-o", help="Folder for the report, as JSON and as a page.", metavar="DIR")] = None
    plot: Annotated[str | None, Option(help="The plots as one picture: PNG, SVG or PDF. Needs matplotlib.", metavar="FILE")] = None
    json: Annotated[bool, Option("--json", help="Print the JSON instead of tables.")] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress and no notes.")] = False

    def check(self) -> None:
        """Fail before the run, not after it. Raises ConfigError."""
        if self.plot is not None:
            from headstart.forms.picture import check

            check(self.plot)
        if self.out is not None:
            try:
                Path(self.out).mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise ConfigError(f"--out {self.out} cannot be made: {e.strerror}; name a folder") from None


@dataclass(frozen=True)
class Report:
    """How a document is drawn. `name`: of its files."""

    name: str
    page: Callable[[Mapping[str, Any]], str]
    charts: Callable[[Mapping[str, Any]], list[Chart]]
    headline: Callable[[Mapping[str, Any]], Sequence[str]]
    tables: Callable[[Mapping[str, Any]], None]


def give(found: dict[str, Any], form: FormOptions, report: Report) -> None:
    """Write and print what was asked for."""
    import json

    from headstart.cli.document import write

    written = []
    if form.out is not None:
        written = [Path(form.out) / f"{report.name}.json", Path(form.out) / f"{report.name}.html"]
        written[0].write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written[1].write_text(report.page(found), encoding="utf-8")
    if form.plot is not None:
        from headstart.forms.picture import draw

        draw(report.charts(found), report.headline(found), form.plot)
        written.append(Path(form.plot))
    if form.json:
        write(found)
    else:
        report.tables(found)
    if not form.quiet and not form.json:
        for name in written:
            note(f"written: {name}")
