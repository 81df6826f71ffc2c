"""A plot as numbers, which svg.py and picture.py draw alike."""

from __future__ import annotations

from dataclasses import dataclass, field

# bars: side by side at whole x. line: points joined, spans as whiskers. band: points joined, spans as a shaded band. points: not joined.
KINDS = ("bars", "line", "band", "points")


@dataclass(frozen=True)
class Series:
    """Points of one thing that is compared, x ascending; `spans` are intervals around y, None where there is none."""

    name: str
    points: list[tuple[float, float]]
    spans: list[tuple[float, float] | None] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """One plot of a kind of `KINDS`. `ticks` name x values; `line` is a level drawn across. The y axis starts at 0."""

    title: str
    x: str
    y: str
    series: list[Series]
    ticks: dict[float, str]
    kind: str = "bars"
    line: tuple[float, str] | None = None


EVEN = (1.0, "as fast as without drafts")
