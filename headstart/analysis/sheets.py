"""The analysis in words: its tables, the same for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.forms.sheet import Sheet, gain, ms, number, share

_SHOWN = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)

WHY_NOT_KL = (
    "KL does not rank drafts. Take p = (.50, .48, .02): draft A = (.50, .4999999, .0000001) has KL .225 and alpha .98, draft B = "
    "(.27, .70, .03) has KL .119 and alpha .77. B is nearer by KL and stands a fifth less often, since KL charges A for a token that "
    "hardly ever comes. What KL does say is a lower bound on alpha (Pinsker; Bretagnolle and Huber), shown beside it; and it is infinite "
    "for a draft whose law leaves tokens out, which costs alpha nothing. Nor does alpha know what a draft costs. So the order is that "
    "of the predicted speed-up."
)


def sheets(found: Mapping[str, Any]) -> list[Sheet]:
    """Every table that has rows."""
    ranked = ranking(found)
    made = (
        _ranking(found, ranked), _measured(found), _lengths(found, ranked, "Predicted speed-up by drafts per step"), _tokens(found, ranked),
        _laws(ranked), _by_draft(ranked), _positions(ranked), _rules(ranked), _categories(found, ranked), _entropy(found, ranked),
        _temperatures(ranked), _costs(found),
    )  # fmt: skip
    return [s for s in made if s.rows]


def ranking(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The drafters, best first."""
    by_name = {d["name"]: d for d in found["drafters"]}
    return [by_name[name] for name in found["ranking"]]


def headline(found: Mapping[str, Any]) -> list[str]:
    """What was analysed, and the answer."""
    model, work, s, costs = found["model"], found["workload"], found["settings"], found["costs"]
    temperature = "greedy" if s["temperature"] == 0 else f"temperature {s['temperature']:g}"
    lines = [
        f"{model['name']}, {model['dtype']} on {model['device']}: {found['machine']['processor']}, {found['machine']['threads']} threads",
        f"{work['texts']} texts, {work['tokens']:,} tokens ({work['source']}), {temperature}, verify={s['verify']}; mean entropy "
        f"{work['entropy']:.2f} nats",
        f"a plain step takes {ms(costs['plain'])} ms, each further row s = {costs['slope']:.3f} of it",
        verdict(found),
    ]
    if found["interrupted"]:
        lines.append("INTERRUPTED: the figures are of what was looked at until then")
    return lines


def verdict(found: Mapping[str, Any]) -> str:
    """The answer in one line."""
    if found["winner"] is None:
        return "no draft pays here: plain decoding is fastest"
    best = ranking(found)[0]
    return f"best: {best['name']} with {best['best_k']} drafts a step, predicted {gain(best['best_speedup'], ' times plain')}"


def _ranking(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    sheet = Sheet(
        "Ranking", "draft", "best k", "predicted [95 %]", "tok/\npass", "alpha", "drafts\nat", "c: cost of\na draft", "ms a\ndraft"
    )
    for d in ranked:
        sheet.add(
            d["name"],
            str(d["best_k"]),
            gain(d["best_speedup"]),
            number(d["tokens_per_pass"][d["best_k"] - 1]),
            number(d["alpha"], 3),
            share(d["drafts_at"]),
            number(d["cost"], 3),
            ms(d["draft_seconds"]["each_draft"]),
        )
    return sheet


def _measured(found: Mapping[str, Any]) -> Sheet:
    sheet = Sheet(
        "Predicted and measured", "draft", "k", "predicted", "measured [95 %]", "off by", "tok/pass\npredicted", "measured", "same\ntext"
    )
    for name, m in sorted(found["measured"].items(), key=lambda item: -item[1]["predicted_speedup"]):
        off = "-" if m["error"] is None else f"{100 * m['error']:+.0f} %"
        tokens = number(m["predicted_tokens_per_pass"]), number(m["tokens_per_pass"])
        sheet.add(name, str(m["k"]), f"{m['predicted_speedup']:.2f}x", gain(m["speedup"]), off, *tokens, f"{m['identical']}/{m['answers']}")
    return sheet


def _ks(found: Mapping[str, Any]) -> list[int]:
    return [k for k in _SHOWN if k <= found["settings"]["num_speculative_tokens"]]


def _lengths(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]], title: str) -> Sheet:
    sheet = Sheet(title, "draft", *(f"k={k}" for k in _ks(found)))
    for d in ranked:
        sheet.add(d["name"], *(f"{d['speedup'][k - 1]['median']:.2f}" for k in _ks(found)))
    return sheet


def _tokens(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    sheet = Sheet("Expected tokens per pass by drafts per step", "draft", *(f"k={k}" for k in _ks(found)))
    for d in ranked:
        sheet.add(d["name"], *(f"{d['tokens_per_pass'][k - 1]:.2f}" for k in _ks(found)))
    return sheet


def _laws(ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    heads = ("draft", "alpha", "TV", "top-1\nagree", "KL(p, q)", "so alpha\nat least", "KL(q, p)", "sum p q")
    sheet = Sheet("How near the draft's law is, at each position of the target's texts", *heads)
    for d in ranked:
        infinite = d["forward_kl_infinite"]
        kl = number(d["forward_kl"], 3) if d["forward_kl"] is not None or not infinite else f"inf at {share(infinite)}"
        figures = (number(d["alpha_at_least"], 3), number(d["reverse_kl"], 3), number(d["independent"], 3))
        sheet.add(d["name"], number(d["alpha"], 3), number(d["tv"], 3), share(d["agreement"]), kl, *figures)
    return sheet


def _rules(ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    sheet = Sheet("Tokens per pass under each rule, at the best k", "draft", "rejection", "block", "match", "greedy\ndraft")
    for d in ranked:
        sheet.add(d["name"], *(number(value, 3) for value in d["rules"].values()))
    return sheet


def _by_draft(ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    shown = [d for d in ranked if d["alpha_by_draft"]]
    most = min(12, max((len(d["alpha_by_draft"]) for d in shown), default=0))
    sheet = Sheet("Alpha by draft, at every position, if the drafts before it are the text", "draft", *(str(i + 1) for i in range(most)))
    for d in shown:
        sheet.add(d["name"], *(number(a, 3) for a in d["alpha_by_draft"][:most]), *([""] * (most - len(d["alpha_by_draft"]))))
    return sheet


def _positions(ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    most = min(12, max((len(d["stands_when_drafted"]) for d in ranked), default=0))
    sheet = Sheet("Alpha by position, %: drafts that stand, of those before which all stood", "draft", *(str(i + 1) for i in range(most)))
    for d in ranked:
        values = d["stands_when_drafted"][:most]
        sheet.add(d["name"], *(f"{100 * a:.0f}" for a in values), *([""] * (most - len(values))))
    return sheet


def _categories(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    sheet = Sheet("By category: alpha, predicted speed-up", "category", *(d["name"] for d in ranked))
    names = list(found["workload"]["categories"])
    for name in names if len(names) > 1 else []:
        each = [d["categories"].get(name) or None for d in ranked]
        sheet.add(name, *("-" if c is None else f"{number(c['alpha'])}, {c['speedup']['median']:.2f}x" for c in each))
    return sheet


def _entropy(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    sheet = Sheet("By entropy of the target: alpha, top-1 agreement", "nats", "tokens", *(d["name"] for d in ranked))
    bins = found["workload"]["entropy_bins"]
    for i, b in enumerate(bins):
        if b["tokens"]:
            upper = f" to {bins[i + 1]['from']:g}" if i + 1 < len(bins) else " and more"
            each = [d["entropy"][i] for d in ranked]
            sheet.add(f"{b['from']:g}{upper}", f"{b['tokens']:,}", *(f"{number(e['alpha'])}, {share(e['agreement'])}" for e in each))
    return sheet


def _temperatures(ranked: Sequence[Mapping[str, Any]]) -> Sheet:
    shown = [d for d in ranked if d["temperatures"]]
    heads = list(shown[0]["temperatures"]) if shown else []
    sheet = Sheet("Alpha by the draft's own temperature (lossless at any)", "draft", *heads, "best")
    for d in shown:
        best = max(d["temperatures"], key=d["temperatures"].get)
        sheet.add(d["name"], *(number(v, 3) for v in d["temperatures"].values()), best)
    return sheet


def _costs(found: Mapping[str, Any]) -> Sheet:
    steps = found["costs"]["steps"]
    widths = sorted({int(m) for each in steps.values() for m in each})
    sheet = Sheet("A step of m rows, relative to one", "tokens before", "one row, ms", *map(str, widths[1:]))
    for context, each in steps.items():
        sheet.add(context, ms(each["1"]), *(f"{each[str(m)] / each['1']:.2f}" if str(m) in each else "" for m in widths[1:]))
    return sheet
