"""The report on a terminal, and the progress bar before it. Draws the document of `summary`, measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 132


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
    several = len(settings(found)) > 1
    for results in settings(found).values():
        if several:
            console.rule(setting(results[0]), align="left", style="dim")
        for part in (_speed(results), _drafts(results), _categories(found, results), _split(results)):
            if part.row_count:
                console.print(part)
    if any(found["width"].values()):
        console.print(_width(found))
    for line in found["notes"]:
        console.print(f"note: {line}", markup=False, style="dim")
    for v in found["verdicts"]:
        console.print(Text("PASS " if v["passed"] else "FAIL ", "bold green" if v["passed"] else "bold red"), end="")
        console.print(f"{v['arm']}, {setting(v)}: {v['words']}", markup=False)
    if not found["verdicts"]:
        console.print("no verdict: nothing was measured to the end")


def headline(found: Mapping[str, Any]) -> list[str]:
    """What ran on what, in two or three lines."""
    model, work, machine, s = found["model"], found["workload"], found["machine"], found["settings"]
    weights = f", {model['parameters'] / 1e6:.0f}M weights" if model["parameters"] else ""
    lines = [
        f"{model['name']}{weights}, {model['dtype']} on {model['device']}: {machine['processor']}, {machine['threads']} threads",
        f"{work['questions']} questions ({work['source']}), {work['turns']} turns, up to {s['max_tokens']} tokens"
        f"{' without end of text' if s['ignore_eos'] else ''}, {s['repeats']} repeat{'s' * (s['repeats'] > 1)}",
    ]
    if found["interrupted"]:
        lines.append("INTERRUPTED: the figures are of what was measured until then")
    return lines


def setting(entry: Mapping[str, Any]) -> str:
    """Batch size and temperature in words."""
    return f"batch {entry['batch']}, {'greedy' if entry['temperature'] == 0 else 'temperature ' + format(entry['temperature'], 'g')}"


def ms(seconds: float | None) -> str:
    """Milliseconds."""
    return "-" if seconds is None else f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"


def gain(interval: Mapping[str, Any] | None, times: str = "x") -> str:
    """A speed-up with its interval."""
    if interval is None:
        return "-"
    span = f" [{interval['low']:.2f}, {interval['high']:.2f}]" if interval["low"] is not None else ""
    return f"{interval['median']:.2f}{times}{span}"


def share(value: float | None) -> str:
    """Per cent."""
    return "-" if value is None else f"{100 * value:.0f} %"


def rate(value: float | None) -> str:
    """Per second."""
    return "-" if value is None else f"{value:.1f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def settings(found: Mapping[str, Any]) -> dict[tuple[int, float], list[Mapping[str, Any]]]:
    """The results by batch size and temperature, arms in order."""
    out: dict[tuple[int, float], list[Mapping[str, Any]]] = {}
    for r in found["results"]:
        out.setdefault((r["batch"], r["temperature"]), []).append(r)
    return out


def drafting(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of arms that draft."""
    return [r for r in results if "speedup" in r["overall"]]


def _speed(results: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("user tok/s", "total tok/s", "TTFT ms", "TPOT ms", "ITL p50/p99", "tok/pass", "speed-up [95 %]", "decode", "predicted")
    table = _table("Speed", "arm", *heads)
    for r in results:
        o = r["overall"]
        table.add_row(
            r["arm"],
            rate(o["user_tokens_per_second"]),
            rate(o["total_tokens_per_second"]),
            ms(o["ttft"]),
            ms(o["tpot"]),
            f"{ms(o['itl_p50'])}/{ms(o['itl_p99'])}",
            "-" if o["tokens_per_pass"] is None else f"{o['tokens_per_pass']:.2f}",
            gain(o.get("speedup")),
            gain(o.get("decode_speedup") and {**o["decode_speedup"], "low": None}),
            f"{o['predicted_speedup']:.2f}x" if o.get("predicted_speedup") else "-",
        )
    return table


def _drafts(results: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("Drafts", "arm", "accepted/drafted", "alpha by position, %", "wasted rows", "ms a draft", "best k", "break-even alpha")
    for r in drafting(results):
        o = r["overall"]
        at, alphas = o.get("break_even_alpha"), o["acceptance_per_position"]
        table.add_row(
            r["arm"],
            f"{o['accepted']}/{o['drafted']} ({share(o['acceptance_rate'])})",
            " ".join(f"{100 * a:.0f}" for a in alphas[:12]) + (" …" if len(alphas) > 12 else "") or "-",
            str(o["wasted_rows"]),
            f"{1000 * o['draft_seconds']:.2f}" if "draft_seconds" in o else "-",
            f"{o['best_k']} ({o['best_k_speedup']:.2f}x)" if "best_k" in o else "-",
            "none" if at is None else f"{at:.2f}",
        )
    return table


def _categories(found: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("By category: speed-up [95 %], tokens per pass", "category", *(r["arm"] for r in drafting(results)))
    names = list(found["workload"]["categories"])
    for name in names if len(names) > 1 and drafting(results) else []:
        each = [r["categories"][name] for r in drafting(results)]
        table.add_row(name, *(f"{gain(c['speedup'])}, {c['tokens_per_pass']:.2f}" if c["answers"] else "-" for c in each))
    return table


def _split(results: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("Where the time went", "arm", "prefill", "draft", "target", "verify", "other", "decoding steps", "ms a step")
    for r in results:
        split, steps = r["overall"]["split"], r["overall"]["steps"]
        total = sum(split.values()) or 1.0
        decoding = total - split["prefill"]
        table.add_row(r["arm"], *(share(v / total) for v in split.values()), str(steps), ms(decoding / steps) if steps else "-")
    return table


def _width(found: Mapping[str, Any]) -> Table:
    curves = {b: c for b, c in found["width"].items() if c}
    widths = sorted({int(m) for c in curves.values() for m in c})
    if len(widths) > 14:
        widths = [m for m in widths if m not in (3, 5, 6, 10, 20, 28)]
    table = _table("A pass of m rows a sequence, relative to one", "batch", "T(1) ms", *map(str, widths[1:]))
    for b, c in curves.items():
        table.add_row(b, ms(c["1"]), *(f"{c[str(m)] / c['1']:.2f}" if str(m) in c else "" for m in widths[1:]))
    return table
