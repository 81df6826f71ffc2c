"""What the tables of a report say, in words: the same rows for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.forms.sheet import Sheet, gain, ms, rate, share


def sheets(found: Mapping[str, Any]) -> list[tuple[str, list[Sheet]]]:
    """(batch size and temperature in words, its tables), and last ("", what they share); tables without rows left out."""
    out = []
    for results in settings(found).values():
        out.append((setting(results[0]), [speed(results), waiting(results), drafts(results), categories(found, results), split(results)]))
    out.append(("", [width(found)]))
    return [(name, [s for s in each if s.rows]) for name, each in out]


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


def settings(found: Mapping[str, Any]) -> dict[tuple[int, float], list[Mapping[str, Any]]]:
    """The results by batch size and temperature, arms in order."""
    out: dict[tuple[int, float], list[Mapping[str, Any]]] = {}
    for r in found["results"]:
        out.setdefault((r["batch"], r["temperature"]), []).append(r)
    return out


def drafting(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of arms that draft."""
    return [r for r in results if "speedup" in r["overall"]]


def speed(results: Sequence[Mapping[str, Any]]) -> Sheet:
    """How fast, and how much faster."""
    sheet = Sheet("Speed", "arm", "tok/s\nuser", "tok/s\ntotal", "tok/\npass", "speed-up [95 %]", "decode", "predicted")
    for r in results:
        o = r["overall"]
        sheet.add(
            r["arm"],
            rate(o["user_tokens_per_second"]),
            rate(o["total_tokens_per_second"]),
            "-" if o["tokens_per_pass"] is None else f"{o['tokens_per_pass']:.2f}",
            gain(o.get("speedup")),
            gain(o.get("decode_speedup") and {**o["decode_speedup"], "low": None}),
            f"{o['predicted_speedup']:.2f}x" if o.get("predicted_speedup") else "-",
        )
    return sheet


def waiting(results: Sequence[Mapping[str, Any]]) -> Sheet:
    """How long one waits, in milliseconds."""
    sheet = Sheet("Waiting, ms", "arm", "TTFT", "TTFT\np99", "TPOT", "ITL\np50", "ITL\np99")
    for r in results:
        sheet.add(r["arm"], *(ms(r["overall"][name]) for name in ("ttft", "ttft_p99", "tpot", "itl_p50", "itl_p99")))
    return sheet


def drafts(results: Sequence[Mapping[str, Any]]) -> Sheet:
    """How drafts fared."""
    sheet = Sheet("Drafts", "arm", "accepted/\ndrafted", "alpha by\nposition, %", "wasted\nrows", "ms a\ndraft", "best k", "even at\nalpha")
    for r in drafting(results):
        o = r["overall"]
        at, alphas = o.get("break_even_alpha"), o["acceptance_per_position"]
        sheet.add(
            r["arm"],
            f"{o['accepted']}/{o['drafted']} ({share(o['acceptance_rate'])})",
            " ".join(f"{100 * a:.0f}" for a in alphas[:12]) + (" …" if len(alphas) > 12 else "") or "-",
            str(o["wasted_rows"]),
            f"{1000 * o['draft_seconds']:.2f}" if "draft_seconds" in o else "-",
            f"{o['best_k']} ({o['best_k_speedup']:.2f}x)" if "best_k" in o else "-",
            "none" if at is None else f"{at:.2f}",
        )
    return sheet


def categories(found: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Sheet:
    """Speed-up and tokens per pass of each category."""
    sheet = Sheet("By category: speed-up [95 %], tokens per pass", "category", *(r["arm"] for r in drafting(results)))
    names = list(found["workload"]["categories"])
    for name in names if len(names) > 1 and drafting(results) else []:
        each = [r["categories"][name] for r in drafting(results)]
        sheet.add(name, *(f"{gain(c['speedup'])}, {c['tokens_per_pass']:.2f}" if c["answers"] else "-" for c in each))
    return sheet


def split(results: Sequence[Mapping[str, Any]]) -> Sheet:
    """Shares of the time, by part of the step."""
    sheet = Sheet("Where the time went", "arm", "prefill", "draft", "target", "verify", "other", "decoding\nsteps", "ms a\nstep")
    for r in results:
        split, steps = r["overall"]["split"], r["overall"]["steps"]
        total = sum(split.values()) or 1.0
        decoding = total - split["prefill"]
        sheet.add(r["arm"], *(share(v / total) for v in split.values()), str(steps), ms(decoding / steps) if steps else "-")
    return sheet


def width(found: Mapping[str, Any]) -> Sheet:
    """The width curve."""
    curves = {b: c for b, c in found["width"].items() if c}
    widths = sorted({int(m) for c in curves.values() for m in c})
    widths = [m for m in widths if m in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) or m == widths[-1]]  # the plot has them all
    sheet = Sheet("A pass of m rows a sequence, relative to one", "batch", "T(1) ms", *map(str, widths[1:]))
    for b, c in curves.items():
        sheet.add(b, ms(c["1"]), *(f"{c[str(m)] / c['1']:.2f}" if str(m) in c else "" for m in widths[1:]))
    return sheet
