"""A `Chart` as inline SVG: no script, no font, no address. Colours follow the page (light and dark) through CSS variables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from html import escape

from headstart.forms.chart import Chart, Series

WIDTH, HEIGHT = 560, 320
_LEFT, _RIGHT, _BOTTOM = 46, 14, 44
_LEGEND = 18
_CHAR = 6.2  # about the width of a character of the labels
Scale = Callable[[float], float]


def svg(chart: Chart) -> str:
    """The drawing, WIDTH x HEIGHT units, scaling with its place."""
    rows = _legend_rows(chart)
    top = 10 + _LEGEND * len(rows)
    low, high = _x_range(chart)
    step, y_max = _y_axis(chart)
    x: Scale = lambda v: _LEFT + (WIDTH - _LEFT - _RIGHT) * (v - low) / (high - low)  # noqa: E731
    y: Scale = lambda v: HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - top) * v / y_max  # noqa: E731
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">', *_legend(rows)]
    for i in range(round(y_max / step) + 1):
        at = y(i * step)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    names = sorted(chart.ticks.items())
    tight = any(_CHAR * (len(a) + len(b)) / 2 + 6 > x(right) - x(left) for (left, a), (right, b) in itertools.pairwise(names))
    for i, (value, name) in enumerate(names):
        lower = 13 if tight and i % 2 else 0  # neighbours that would touch take turns on two lines
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - _BOTTOM + 16 + lower}" text-anchor="middle">{escape(name)}</text>')
    parts.append(f'<text class="axis" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(chart.x)}</text>')
    draw = _bars if chart.kind == "bars" else _line
    for number, series in enumerate(chart.series):
        parts += draw(chart, series, number, x, y)
    if chart.line is not None:
        level, name = chart.line
        parts.append(
            f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"><title>{name}</title></line>'
        )
    return "\n".join([*parts, "</svg>"])


def _legend_rows(chart: Chart) -> list[list[tuple[int, str, float]]]:
    """Names of the series with their numbers and places, in as many rows as they need."""
    rows: list[list[tuple[int, str, float]]] = [[]]
    at = float(_LEFT)
    names = [s.name for s in chart.series] + ([chart.line[1]] if chart.line else [])
    for number, name in enumerate(names):
        room = 26 + _CHAR * len(name)
        if at + room > WIDTH and rows[-1]:
            rows.append([])
            at = float(_LEFT)
        rows[-1].append((number if number < len(chart.series) else -1, name, at))
        at += room
    return rows


def _legend(rows: list[list[tuple[int, str, float]]]) -> list[str]:
    parts = []
    for i, row in enumerate(rows):
        y = 8 + _LEGEND * i
        for number, name, x in row:
            mark = f'<rect class="s{number % 6}" x="{x:.0f}" y="{y - 5}" width="10" height="10" rx="2"/>'
            if number < 0:
                mark = f'<line class="level" x1="{x:.0f}" x2="{x + 12:.0f}" y1="{y}" y2="{y}"/>'
            parts.append(f'{mark}<text x="{x + 16:.0f}" y="{y + 4}">{escape(name)}</text>')
    return parts


def _x_range(chart: Chart) -> tuple[float, float]:
    xs = [x for s in chart.series for x, _ in s.points] + list(chart.ticks)
    margin = 0.5 if chart.kind == "bars" or min(xs) == max(xs) else 0.06 * (max(xs) - min(xs))
    return min(xs) - margin, max(xs) + margin


def _y_axis(chart: Chart) -> tuple[float, float]:
    """(step between grid lines, upper end): three to six steps of 1, 2 or 5 times a power of ten."""
    values = [y for s in chart.series for _, y in s.points] + [high for s in chart.series for _, high in filter(None, s.spans)]
    top = max([*values, chart.line[0] * 1.05 if chart.line else 0.0, 1e-9])
    power = 10.0 ** math.floor(math.log10(top / 3))
    step = next(power * f for f in (1, 2, 5, 10) if top / (power * f) <= 6)
    return step, step * math.ceil(top / step - 1e-9)


def _said(series: Series, chart: Chart, i: int) -> str:
    """What hovering shows."""
    x, y = series.points[i]
    span = series.spans[i] if series.spans else None
    interval = f" [{span[0]:.2f}, {span[1]:.2f}]" if span else ""
    return escape(f"{series.name}, {chart.ticks.get(x, chart.ticks.get(round(x), format(x, 'g')))}: {y:.2f}{interval}")


def _bars(chart: Chart, series: Series, number: int, x: Scale, y: Scale) -> list[str]:
    count, parts = len(chart.series), []
    width = 0.8 / count
    for i, (at, value) in enumerate(series.points):
        left, right = x(at - 0.4 + number * width), x(at - 0.4 + (number + 0.9) * width)
        box = f'x="{left:.1f}" y="{y(value):.1f}" width="{right - left:.1f}" height="{y(0) - y(value):.1f}"'
        parts.append(f'<rect class="s{number % 6}" {box}><title>{_said(series, chart, i)}</title></rect>')
        parts.append(_span(series, i, (left + right) / 2, y))
    return parts


def _line(chart: Chart, series: Series, number: int, x: Scale, y: Scale) -> list[str]:
    parts = []
    if chart.kind == "band":
        spans = [(at, s) for (at, _), s in zip(series.points, series.spans, strict=False) if s is not None]
        edge = [(at, high) for at, (_, high) in spans] + [(at, low) for at, (low, _) in reversed(spans)]
        parts.append(f'<polygon class="s{number % 6} band" points="{_path(edge, x, y)}"/>')
    if chart.kind != "points":
        parts.append(f'<polyline class="l{number % 6}" points="{_path(series.points, x, y)}"/>')
    for i, (a, b) in enumerate(series.points):
        parts.append(_span(series, i, x(a), y) if chart.kind != "band" else "")
        parts.append(
            f'<circle class="s{number % 6}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.5"><title>{_said(series, chart, i)}</title></circle>'
        )
    return parts


def _path(points: list[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)


def _span(series: Series, i: int, x: float, y: Scale) -> str:
    span = series.spans[i] if series.spans else None
    return f'<line class="span" x1="{x:.1f}" x2="{x:.1f}" y1="{y(span[0]):.1f}" y2="{y(span[1]):.1f}"/>' if span else ""
