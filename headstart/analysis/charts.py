"""What the plots show, as numbers: from the document to `Chart`s, which `forms` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.analysis.sheets import ranking
from headstart.core.theory import alpha_bounds
from headstart.forms.chart import EVEN, Chart, Series


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Every plot that has something to show."""
    ranked = ranking(found)
    made = [
        _speedup(ranked),
        _measured(found),
        _positions(ranked),
        _entropy(found, ranked),
        _divergence(ranked),
        _rules(ranked),
        _steps(found),
    ]
    return [c for c in made if any(s.points for s in c.series)]


def _ticks(most: int) -> dict[float, str]:
    return {float(k): str(k) for k in range(1, most + 1) if most <= 8 or k % 2 == 0 or k == 1}


def _speedup(ranked: Sequence[Mapping[str, Any]]) -> Chart:
    series = [
        Series(
            d["name"],
            [(float(k), s["median"]) for k, s in enumerate(d["speedup"], 1)],
            [None if s["low"] is None else (s["low"], s["high"]) for s in d["speedup"]],
        )
        for d in ranked
    ]
    most = max((len(d["speedup"]) for d in ranked), default=1)
    return Chart("Predicted speed-up by draft length", "drafts per step", "times plain", series, _ticks(most), "band", EVEN)


def _measured(found: Mapping[str, Any]) -> Chart:
    names = sorted(found["measured"], key=lambda n: -found["measured"][n]["predicted_speedup"])
    each = [found["measured"][n] for n in names]
    span = lambda m: (m["speedup"]["low"], m["speedup"]["high"]) if m["speedup"] and m["speedup"]["low"] is not None else None  # noqa: E731
    series = [
        Series("predicted", [(float(i), m["predicted_speedup"]) for i, m in enumerate(each)]),
        Series("measured", [(float(i), m["speedup"]["median"]) for i, m in enumerate(each) if m["speedup"]], [span(m) for m in each]),
    ]
    return Chart("Predicted and measured", "", "times plain", series, dict(enumerate(names)), "bars", EVEN)


def _positions(ranked: Sequence[Mapping[str, Any]]) -> Chart:
    series = [Series(d["name"], [(i + 1.0, a) for i, a in enumerate(d["stands_when_drafted"])]) for d in ranked]
    most = max((len(s.points) for s in series), default=1)
    return Chart("Alpha by position", "draft", "stands, if all before it did", series, _ticks(most), "line")


def _entropy(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> Chart:
    bins = found["workload"]["entropy_bins"]
    series = [Series(d["name"], [(float(i), e["alpha"]) for i, e in enumerate(d["entropy"]) if e["alpha"] is not None]) for d in ranked]
    return Chart("Alpha by entropy of the target", "nats, from", "alpha", series, {float(i): f"{b['from']:g}" for i, b in enumerate(bins)})


def _divergence(ranked: Sequence[Mapping[str, Any]]) -> Chart:
    """One point a category, and the least alpha that KL allows."""
    series = []
    for d in ranked:
        points = sorted(
            (c["forward_kl"], c["alpha"])
            for c in (*d["categories"].values(), d)
            if c and c["forward_kl"] is not None and c["alpha"] is not None
        )
        series.append(Series(d["name"], points))  # without points too, so that colours are those of the other plots
    most = max((x for s in series for x, _ in s.points), default=0.0)
    if most:
        series.append(Series("alpha is at least", [(most * i / 40, max(alpha_bounds(most * i / 40))) for i in range(1, 41)]))
    ticks = {round(most * i / 4, 3): f"{most * i / 4:.2g}" for i in range(5)}
    return Chart("KL against alpha, by category", "KL(p, q), nats", "alpha", series, ticks, "points")


def _rules(ranked: Sequence[Mapping[str, Any]]) -> Chart:
    names = list(ranked[0]["rules"]) if ranked else []
    series = [Series(d["name"], [(float(i), d["rules"][n]) for i, n in enumerate(names)]) for d in ranked]
    return Chart("Tokens per pass under each rule", "", "at the best k", series, {float(i): n for i, n in enumerate(names)})


def _steps(found: Mapping[str, Any]) -> Chart:
    curves = {c: {int(m): t for m, t in each.items()} for c, each in found["costs"]["steps"].items()}
    series = [Series(f"{c} tokens before", [(float(m), each[m] / each[1]) for m in sorted(each)]) for c, each in curves.items()]
    most = max((m for each in curves.values() for m in each), default=1)
    return Chart("A wider step", "rows", "time, of a step of one row", series, _ticks(most), "line", (1.0, "free"))
