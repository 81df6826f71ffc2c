"""What is said of a draft: report.json, report.html and the model card, from what `run` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headstart
from headstart.distill.export import expected, write_json
from headstart.forms.chart import Chart, Series
from headstart.forms.page import render
from headstart.forms.sheet import Sheet, number, share

if TYPE_CHECKING:
    from headstart.distill.run import Made

_TEMPLATE = Path(__file__).with_name("report.html")


def document(made: Made) -> dict[str, Any]:
    """report.json."""
    plan = made.plan
    return {
        "headstart": headstart.__version__,
        "kind": plan.kind,
        "target": made.target,
        "data": {
            "texts": len(made.split.train),
            "held_out": len(made.split.held_out),
            "tokens": made.split.tokens,
            "left_out": made.split.left_out,
            "prompts": list(plan.prompts) or "written by the target",
            "excluded": list(plan.exclude),
        },
        "training": {
            "loss": plan.training.loss,
            "learning_rate": plan.training.rate,
            "steps": made.progress.steps,
            "best_step": made.progress.best_step,
            "seed": plan.seed,
            "seconds": {name: round(s, 1) for name, s in made.seconds.items()},
        },
        "draft": made.facts,
        "before": made.before,
        "after": made.after,
        "speed": made.speed,
        "points": made.progress.points,
    }


def write(made: Made) -> None:
    """The three files, into the draft's folder."""
    found, out = document(made), made.plan.out
    write_json(out / "report.json", found)
    (out / "report.html").write_text(page(found), encoding="utf-8")
    (out / "README.md").write_text(card(found, out.name), encoding="utf-8")


def page(found: Mapping[str, Any]) -> str:
    """The report as a page."""
    tiles = [
        (number(found["after"][0]["alpha"], 3), "alpha of the first draft", f"before: {number(found['before'][0]['alpha'], 3)}"),
        (number(found["after"][0]["agree"], 3), "at temperature 0", f"before: {number(found['before'][0]['agree'], 3)}"),
        (number(_tokens(found["after"], "alpha")), f"tokens a pass, {len(found['after'])} drafts", "sampled"),
        *((number(s["speedup"]), "times plain decoding here", f"temperature {s['temperature']:g}") for s in found["speed"]),
    ]
    made = {"name": found["target"]}
    return render(_TEMPLATE, charts(found), made=made, lines=_lines(found), tiles=tiles, sheets=sheets(found))


def sheets(found: Mapping[str, Any]) -> list[Sheet]:
    """Before and after, by draft position."""
    out = Sheet("Held-out text", "draft", "alpha before", "after", "agree before", "after")
    for i, (b, a) in enumerate(zip(found["before"], found["after"], strict=True), 1):
        out.add(str(i), number(b["alpha"], 3), number(a["alpha"], 3), number(b["agree"], 3), number(a["agree"], 3))
    tokens = [number(_tokens(found[when], what)) for what in ("alpha", "agree") for when in ("before", "after")]
    out.add("tokens a pass", *tokens)
    if not found["speed"]:
        return [out]
    speed = Sheet("Held-out questions, here", "temperature", "alpha by draft", "tokens a pass", "times plain", "predicted")
    for s in found["speed"]:
        speed.add(f"{s['temperature']:g}", *_speed(s))
    return [out, speed]


def _speed(s: Mapping[str, Any]) -> list[str]:
    """What is said of the speed at one temperature: alpha by draft, tokens a pass, speed-up measured and predicted."""
    alphas = " ".join(number(a) for a in s["acceptance_per_position"]) or "-"
    return [alphas, number(s["tokens_per_pass"]), number(s["speedup"]), number(s["predicted_speedup"])]


def charts(found: Mapping[str, Any]) -> list[Chart]:
    """Alpha and loss over the steps."""
    points = found["points"]
    ticks = {float(p["step"]): f"{p['step']:,}" for p in points[:: max(1, len(points) // 5)]}
    alphas = [
        Series(f"draft {j + 1}, held out", [(p["step"], p["alpha"][j]) for p in points if j < len(p["alpha"])])
        for j in range(len(points[0]["alpha"]))
    ]
    trained = Series("draft 1, in training", [(p["step"], p["train_alpha"]) for p in points if p["train_alpha"] is not None])
    loss = Series("in training", [(p["step"], p["loss"]) for p in points if p["loss"] is not None])
    return [
        Chart("Alpha", "step", "how often a draft stands", [*alphas, trained], ticks, "line"),
        Chart("Loss", "step", "loss", [loss], ticks, "line"),
    ]


def _tokens(figures: list[dict[str, float]], what: str) -> float:
    return expected([f[what] for f in figures])


def _lines(found: Mapping[str, Any]) -> list[str]:
    data, training, draft = found["data"], found["training"], found["draft"]
    minutes = {name: s / 60 for name, s in training["seconds"].items()}
    return [
        f"a {found['kind']} for {found['target']}: {draft['weights'] / 1e6:.1f}M trained weights, {draft['bytes'] / 2**20:.1f} MiB",
        f"{data['tokens']:,} tokens in {data['texts']:,} texts by the target, {data['held_out']:,} more held out",
        f"loss {training['loss']}, {training['steps']:,} steps, best at {training['best_step']:,}; "
        + ", ".join(f"{name} {m:.0f} min" for name, m in minutes.items()),
        *([f"vocabulary of {draft['vocabulary']:,} tokens, {share(draft['coverage'])} of held-out text"] if "vocabulary" in draft else []),
    ]


def card(found: Mapping[str, Any], name: str) -> str:
    """README.md of the draft: what it is, what it learned from, how it is used."""
    rows = "\n".join(
        f"| {i} | {b['alpha']:.3f} | {a['alpha']:.3f} | {b['agree']:.3f} | {a['agree']:.3f} |"
        for i, (b, a) in enumerate(zip(found["before"], found["after"], strict=True), 1)
    )
    target = found["target"]
    facts = "\n".join(f"- {line}" for line in _lines(found))
    excluded = ", ".join(f"`{Path(f).name}`" for f in found["data"]["excluded"]) or "none"
    return f"""---
library_name: headstart
tags: [speculative-decoding]
---

# {name}

A draft for `{target}`, made by `headstart distill`. It makes that model's answers come sooner and changes none of them.

{facts}
- prompts: {_prompts(found)}; questions excluded: {excluded}

| draft | alpha before training | after | agreement before | after |
|---|---|---|---|---|
{rows}

alpha = sum min(p, q): how often a sampled draft stands, if all before it did; agreement: the same for greedy drafts at temperature 0.
On texts of the target that were never trained on.
{_measured(found)}
## Use

{_usage(found, name)}"""


def _measured(found: Mapping[str, Any]) -> str:
    """The speed as a table; nothing where it was not measured."""
    if not found["speed"]:
        return ""
    rows = "\n".join(f"| {s['temperature']:g} | {' | '.join(_speed(s))} |" for s in found["speed"])
    return f"""
Answers to held-out questions on the machine that made it, with drafts only where they pay:

| temperature | alpha by draft | tokens a pass | times plain decoding | predicted |
|---|---|---|---|---|
{rows}
"""


def _prompts(found: Mapping[str, Any]) -> str:
    given = found["data"]["prompts"]
    return given if isinstance(given, str) else ", ".join(f"`{Path(p).name}`" for p in given)


def _usage(found: Mapping[str, Any], name: str) -> str:
    target = found["target"]
    here = f"    headstart bench --model {target} --draft ./{name}\n    headstart serve {target} --draft ./{name}\n"
    if found["kind"] == "head":
        return (
            f"{here}\nIn vLLM (speculators layout, EAGLE-3):\n\n"
            f'    vllm serve TARGET --speculative-config \'{{"method": "eagle3", "model": "./{name}", "num_speculative_tokens": 3}}\'\n'
        )
    return (
        f"{here}\nIn vLLM, and in transformers:\n\n"
        f'    vllm serve TARGET --speculative-config \'{{"method": "draft_model", "model": "./{name}", "num_speculative_tokens": 3}}\'\n'
        f'    model.generate(**inputs, assistant_model=AutoModelForCausalLM.from_pretrained("./{name}"))\n'
    )
