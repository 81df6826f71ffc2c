"""`headstart theory`: the formulas on numbers of your own; nothing is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from headstart.core.checks import number
from headstart.core.errors import ConfigError
from headstart.core.theory import Costs, best_k, break_even, ceiling, expected_tokens, speedup

if TYPE_CHECKING:
    from headstart.forms.chart import Chart

_MOST = 512
_BAR = 40  # characters of the longest bar


def theory(
    *,
    alpha: Annotated[
        str,
        Option("--alpha", "-a", help="How likely a draft stands, if all before it did; several, 0.9,0.7,0.6: by position.", metavar="A"),
    ],
    cost: Annotated[float, Option("--cost", "-c", help="c: time of one draft, in passes of the target over one row.")] = 0.0,
    slope: Annotated[float, Option("--slope", help="s: time of each further row of a pass, in the same unit.", metavar="S")] = 0.0,
    overhead: Annotated[float, Option("--overhead", help="What a step with drafts takes beside these.", metavar="F")] = 0.0,
    num_speculative_tokens: Annotated[
        str, Option("--k", "--num-speculative-tokens", "-k", help="Drafts per step: 5, 1..12 or 1,2,4.", metavar="K")
    ] = "1..12",
    plot: Annotated[str | None, Option(help="The curve as a picture: PNG, SVG or PDF. Needs matplotlib.", metavar="FILE")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """What drafts should give: tokens per pass, speed-up, best length and break-even, from acceptance and costs.

    headstart theory --alpha 0.8 --cost 0.05 --k 1..12

    headstart theory --alpha 0.72,0.66,0.6 --cost 0.1 --slope 0.05
    """
    lengths = _lengths(num_speculative_tokens)
    given = _alphas(alpha)
    for name, value in (("--cost", cost), ("--slope", slope), ("--overhead", overhead)):
        number(name, value, 0, 1e6)
    if plot is not None:
        from headstart.forms.picture import check

        check(plot)
    acceptance = [given[min(i, len(given) - 1)] for i in range(max(lengths))]
    found = _document(acceptance, lengths, Costs.linear(cost, slope, overhead), len(set(given)) == 1)
    found["settings"] = {"alpha": given, "cost": cost, "slope": slope, "overhead": overhead}
    if plot is not None:
        from headstart.forms.picture import draw

        draw([_chart(found)], _lines(found), plot)
    if as_json:
        from headstart.cli.document import write

        write(found)
    else:
        _print(found)


def _lengths(text: str) -> list[int]:
    """5, 1..12 or 1,2,4. Raises ConfigError."""
    low, dots, high = text.partition("..")
    try:
        out = list(range(int(low), int(high) + 1)) if dots and int(high) <= _MOST else sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--k {text} must be a draft length, a range or a list: 5, 1..12 or 1,2,4, up to {_MOST}") from None
    if not out or out[0] < 1 or out[-1] > _MOST:
        raise ConfigError(f"--k {text} must hold draft lengths from 1 to {_MOST}: write 5, 1..12 or 1,2,4")
    return out


def _alphas(text: str) -> list[float]:
    try:
        out = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--alpha {text} must be a probability, or one for each position: 0.8 or 0.9,0.7,0.6") from None
    for value in out:
        number("--alpha", value, 0.0, 1.0)
    return out


def _document(acceptance: list[float], lengths: list[int], costs: Costs, constant: bool) -> dict[str, Any]:
    best, gain = best_k(acceptance, costs)
    rows = []
    for k in lengths:
        tokens = expected_tokens(acceptance[:k])
        row = {"k": k, "tokens": tokens, "speedup": speedup(acceptance, {k: 1}, costs), "acceptance_rate": (tokens - 1) / k}
        rows.append({**row, "break_even_alpha": break_even(k, costs)})
    return {
        "version": 1,
        "rows": rows,
        "best_k": best,
        "best_speedup": gain,
        "ceiling": ceiling(costs, acceptance[0] if constant else 1.0, max(lengths)),
    }


def _lines(found: dict[str, Any]) -> list[str]:
    s = found["settings"]
    alphas = ", ".join(f"{a:g}" for a in s["alpha"])
    best = (
        f"best: k = {found['best_k']}, {found['best_speedup']:.2f} times plain"
        if found["best_k"]
        else "no length pays: k = 0, plain decoding"
    )
    return [
        f"alpha {alphas}; a draft costs {s['cost']:g} of a pass, a further row {s['slope']:g}, a step with drafts {s['overhead']:g} more",
        f"{best}; no chain of this alpha and length exceeds {found['ceiling']:.2f}",
    ]


def _chart(found: dict[str, Any]) -> Chart:
    from headstart.forms.chart import EVEN, Chart, Series

    rows = found["rows"]
    ticks = {float(r["k"]): str(r["k"]) for r in rows[:: max(1, len(rows) // 12)]}
    series = [Series("speed-up", [(r["k"], r["speedup"]) for r in rows]), Series("tokens per pass", [(r["k"], r["tokens"]) for r in rows])]
    return Chart("Speed-up by draft length", "drafts per step", "times plain", series, ticks, "line", EVEN)


def _print(found: dict[str, Any]) -> None:
    from headstart.forms.sheet import Sheet
    from headstart.forms.table import stdout, table

    sheet = Sheet("", "k", "tokens\na pass", "accepted/\ndrafted", "even at\nalpha", "speed-up", "│ is plain decoding")
    longest = max(1.0, *(r["speedup"] for r in found["rows"]))
    for r in found["rows"]:
        even = "none" if r["break_even_alpha"] is None else f"{r['break_even_alpha']:.2f}"
        mark = " <" if r["k"] == found["best_k"] else ""
        rate = f"{100 * r['acceptance_rate']:.0f} %"
        sheet.add(f"{r['k']}{mark}", f"{r['tokens']:.2f}", rate, even, f"{r['speedup']:.2f}x", _bar(r["speedup"], longest))
    console = stdout()
    console.print(table(sheet, console.width))
    for line in _lines(found):
        console.print(line, markup=False)


def _bar(value: float, longest: float) -> str:
    """A bar with a mark where plain decoding is."""
    filled, even = round(_BAR * value / longest), round(_BAR / longest) - 1
    return "".join("│" if i == even and i >= filled else "┃" if i == even else "━" if i < filled else "·" for i in range(_BAR))
