"""The plots as one picture, by matplotlib: PNG, SVG or PDF, by the name of the file."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.core.errors import ConfigError
from headstart.forms.chart import Chart

_KINDS = (".png", ".svg", ".pdf")
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")  # Okabe and Ito: told apart by all eyes


def check(name: str) -> None:
    """Fail before measuring. Raises ConfigError when the picture could not be written."""
    path = Path(name)
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(f"--plot {name} must end in {', '.join(_KINDS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {name}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'headstart[bench]', or use --out, whose page needs nothing")


def draw(shown: Sequence[Chart], lines: Sequence[str], name: str) -> None:
    """Write the charts under `lines` of text; nothing to show leaves no file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not shown:
        return
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(6.4 * columns, 3.9 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(lines), fontsize=9)
    for i, chart in enumerate(shown):
        _panel(figure.add_subplot(rows, columns, i + 1), chart)
    figure.savefig(name, dpi=130)


def _panel(axes: Any, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for number, series in enumerate(chart.series):
        if not series.points:
            continue
        x, y = ([p[i] for p in series.points] for i in (0, 1))
        colour = COLOURS[number % len(COLOURS)]
        if chart.kind == "bars":
            x = [v - 0.4 + (number + 0.5) * width for v in x]
            axes.bar(x, y, 0.9 * width, label=series.name, color=colour)
        else:
            axes.plot(x, y, "o" if chart.kind == "points" else "o-", label=series.name, color=colour)
        spans = [(at, *span) for at, span in zip(x, series.spans, strict=False) if span is not None]
        if chart.kind == "band" and spans:
            axes.fill_between(*zip(*spans, strict=True), color=colour, alpha=0.15, linewidth=0)
            continue
        for at, low, high in spans:
            axes.vlines(at, low, high, color="0.25", linewidth=1)
    if chart.line is not None:
        axes.axhline(chart.line[0], color="0.25", linestyle="--", linewidth=1, label=chart.line[1])
    axes.set_title(chart.title, fontsize=10)
    axes.set_xlabel(chart.x, fontsize=9)
    axes.set_ylabel(chart.y, fontsize=9)
    axes.set_xticks(list(chart.ticks), list(chart.ticks.values()))
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(4, len(chart.series) + 1))
