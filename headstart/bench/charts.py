"""What the plots show, as numbers: from the document of `summary` to `Chart`s, which `forms` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.bench.sheets import drafting, setting, settings
from headstart.forms.chart import EVEN, Chart, Series


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Every plot that has something to show: of each batch size or temperature, then over all of them."""
    several = len(settings(found)) > 1
    out: list[Chart] = []
    temperatures = set()
    for (_, temperature), results in settings(found).items():
        tail = f", {setting(results[0])}" if several else ""
        arms = drafting(results)
        out.append(_by_category(found, arms, tail))
        if temperature not in temperatures:  # which drafts stand hardly depends on the batch size
            temperatures.add(temperature)
            out += [_by_position(arms, tail), _accepted(arms, tail)]
    if len({r["batch"] for r in found["results"]}) > 1:
        out += [_by_batch(found, t) for t in dict.fromkeys(r["temperature"] for r in found["results"])]
    return [c for c in [*out, _width(found)] if any(s.points for s in c.series)]


def _point(interval: Mapping[str, Any] | None) -> tuple[float, tuple[float, float] | None] | None:
    if interval is None:
        return None
    return interval["median"], (interval["low"], interval["high"]) if interval["low"] is not None else None


def _series(name: str, at: Sequence[tuple[float, Mapping[str, Any] | None]]) -> Series:
    """A series of speed-ups; x values without one are left out."""
    found = [(x, p) for x, p in ((x, _point(i)) for x, i in at) if p is not None]
    return Series(name, [(x, p[0]) for x, p in found], [p[1] for _, p in found])


def _by_category(found: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], tail: str) -> Chart:
    names = list(found["workload"]["categories"])
    names = names if len(names) > 1 else []
    series = [
        _series(r["arm"], [*((i, r["categories"][n].get("speedup")) for i, n in enumerate(names)), (len(names), r["overall"]["speedup"])])
        for r in arms
    ]
    return Chart(f"Speed-up by category{tail}", "", "times plain", series, dict(enumerate([*names, "all"])), line=EVEN)


def _by_position(arms: Sequence[Mapping[str, Any]], tail: str) -> Chart:
    series = [Series(r["arm"], [(i + 1, a) for i, a in enumerate(r["overall"]["acceptance_per_position"])]) for r in arms]
    return Chart(f"Acceptance by position{tail}", "draft", "stands, if all before it did", series, _whole(series))


def _accepted(arms: Sequence[Mapping[str, Any]], tail: str) -> Chart:
    series = []
    for r in arms:
        counts = r["overall"]["acceptance_histogram"]
        series.append(Series(r["arm"], [(i, n / sum(counts)) for i, n in enumerate(counts)] if sum(counts) else []))
    return Chart(f"Accepted drafts per step{tail}", "accepted", "share of steps with drafts", series, _whole(series))


def _by_batch(found: Mapping[str, Any], temperature: float) -> Chart:
    rows = [r for r in drafting(found["results"]) if r["temperature"] == temperature]
    sizes = sorted({r["batch"] for r in rows})
    names = list(dict.fromkeys(r["arm"] for r in rows))
    median = {(r["arm"], r["batch"]): r["overall"]["speedup"] for r in rows}
    apart = 0.05  # side by side, so that intervals do not hide each other
    series = [
        _series(name, [(i + apart * (n - (len(names) - 1) / 2), median.get((name, b))) for i, b in enumerate(sizes)])
        for n, name in enumerate(names)
    ]
    tail = "" if len({r["temperature"] for r in found["results"]}) == 1 else f", temperature {temperature:g}"
    return Chart(
        f"Speed-up by batch size{tail}", "questions at once", "times plain", series, dict(enumerate(map(str, sizes))), "line", EVEN
    )


def _width(found: Mapping[str, Any]) -> Chart:
    curves = {b: {int(m): t for m, t in c.items()} for b, c in found["width"].items() if c}
    series = [Series(f"batch {b}", [(m, c[m] / c[1]) for m in sorted(c)]) for b, c in curves.items()]
    most = max((m for c in curves.values() for m in c), default=1)
    ticks = {float(m): str(m) for m in (1, 2, 4, 8, 16, 24, 32, 64, 128) if m <= most and (most <= 32 or m not in (2, 24))}
    return Chart("A wider pass", "rows a sequence", "time, of a pass of one row", series, ticks, "line", (1.0, "free"))


def _whole(series: Sequence[Series]) -> dict[float, str]:
    return {x: f"{x:g}" for x in sorted({x for s in series for x, _ in s.points})}
