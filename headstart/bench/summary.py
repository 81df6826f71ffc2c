"""From a run to its document: one dictionary of plain numbers, which is bench.json and all that the reports draw.

docs/bench.md describes it. `VERSION` changes when a field changes its meaning or goes. Times are seconds.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import Any

from headstart import __version__
from headstart.api import LLM
from headstart.bench.arms import Arm
from headstart.bench.run import SPLIT, Answer, Group, Run, pairs
from headstart.bench.stats import Interval, median_ratio, quantile
from headstart.bench.verdict import Verdict
from headstart.core.outputs import SpeculativeStats
from headstart.core.theory import Costs, best_k, break_even, speedup
from headstart.ops.device import processor_name

VERSION = 1
Width = Mapping[int, float]


def document(llm: LLM, run: Run, source: str, widths: Mapping[int, Width], verdicts: Seq[Verdict]) -> dict[str, Any]:
    """The whole report. `source`: where the questions are from; `widths`: the width curve of each batch size."""
    plan, model = run.plan, llm.engine.target.model
    settings = [(b, t) for b in plan.batches for t in plan.temperatures if any((g.batch, g.temperature) == (b, t) for g in run.groups)]
    return {
        "version": VERSION,
        "headstart": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "interrupted": run.interrupted,
        "machine": machine(),
        "model": {
            "name": llm.config.model,
            "parameters": getattr(model, "parameters", None),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
        },
        "notes": [*found_notes(llm, run.arms), *_remarks(run)],
        "settings": {
            "batches": list(plan.batches),
            "temperatures": list(plan.temperatures),
            "repeats": plan.repeats,
            "warmup": plan.warmup,
            "seed": plan.seed,
            "max_tokens": plan.params.max_tokens,
            "ignore_eos": plan.params.ignore_eos,
            "prefix_caching": llm.config.enable_prefix_caching,
        },
        "workload": {
            "source": source,
            "questions": len(plan.questions),
            "turns": sum(len(q.turns) for q in plan.questions),
            "categories": dict(Counter(q.category for q in plan.questions)),
        },
        "arms": [arm.described() for arm in run.arms],
        "width": {str(b): {str(m): t for m, t in curve.items()} for b, curve in widths.items()},
        "results": [_result(run, arm, b, t, widths.get(b, {})) for b, t in settings for arm in run.arms],
        "verdicts": [asdict(v) for v in verdicts],
        "passed": all(v.passed for v in verdicts),
        "answers": [_record(g, a) for g in run.groups for a in g.answers],
    }


def found_notes(llm: LLM, arms: Seq[Arm]) -> list[str]:
    """What loading the target and the drafts had to say."""
    own = [note for note in llm.notes if not note.startswith("speculation:")]  # the target is loaded without a draft; arms have theirs
    return [*own, *(f"{arm.name}: {note}" for arm in arms for note in arm.notes)]


def machine() -> dict[str, Any]:
    """What it ran on: processor, threads, and the versions that decide speed."""
    import torch
    import transformers

    return {
        "system": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _remarks(run: Run) -> list[str]:
    """What a reader should know about the figures."""
    out = []
    if run.interrupted:
        out.append("the run was ended before its plan was: figures are of what was measured until then")
    skipped = {turn for g in run.groups for turn in g.skipped}
    if skipped:
        out.append(f"{len(skipped)} turns were left out: with the longest answer they would not fit into the context")
    too_fast, compared = _impossible(run)
    if too_fast:
        out.append(
            f"in {too_fast} of {compared} answers the speed-up exceeds tokens per pass, which no draft can do: other work disturbed the "
            "timing, measure again or with --repeats"
        )
    stalls = sum(a.preemptions for g in run.groups for a in g.answers)
    if stalls:
        out.append(f"{stalls} times a sequence had to give up its KV for another: raise --kv-cache-memory or lower --batch")
    return out


def _impossible(run: Run) -> tuple[int, int]:
    """(answers one at a time that were faster than their passes allow by over 10 %, answers compared): a wider pass is never cheaper."""
    both = [
        (answer.rate / plain.rate, len(answer.token_ids) / answer.passes)
        for arm in run.arms[1:]
        for temperature in run.plan.temperatures
        for plain, answer in pairs(run, arm.name, 1, temperature)
    ]
    return sum(gain > 1.1 * bound for gain, bound in both), len(both)


def _result(run: Run, arm: Arm, batch: int, temperature: float, width: Width) -> dict[str, Any]:
    """One arm at one batch size and temperature: overall and by category."""
    groups = [g for g in run.groups if (g.arm, g.batch, g.temperature) == (arm.name, batch, temperature)]
    both = list(pairs(run, arm.name, batch, temperature))
    answers = [a for g in groups for a in g.answers]
    costs = Costs(width, draft_seconds(groups)) if width else None
    categories = dict.fromkeys(q.category for q in run.plan.questions)
    return {
        "arm": arm.name,
        "batch": batch,
        "temperature": temperature,
        "overall": {**_figures(arm, answers, both, costs), **_totals(groups)},
        "categories": {c: _figures(arm, *_of_category(c, answers, both), costs) for c in categories},
    }


def _of_category(category: str, answers: Seq[Answer], both: Seq[tuple[Answer, Answer]]) -> tuple[list[Answer], list[tuple[Answer, Answer]]]:
    return [a for a in answers if a.question.category == category], [(p, a) for p, a in both if a.question.category == category]


def draft_seconds(groups: Iterable[Group]) -> float:
    """Measured seconds per draft that was fed, in decoding steps."""
    groups = list(groups)
    drafts = sum(g.fed_drafts for g in groups)
    return sum(g.split["draft"] for g in groups) / drafts if drafts else 0.0


def _figures(arm: Arm, answers: Seq[Answer], both: Seq[tuple[Answer, Answer]], costs: Costs | None) -> dict[str, Any]:
    """What one user sees, how drafts fared, and the speed-up: measured and predicted."""
    stats = SpeculativeStats.total(a.stats for a in answers)
    tokens, passes = sum(len(a.token_ids) for a in answers), sum(a.passes for a in answers)
    gaps = [later[0] - sooner[0] for a in answers for sooner, later in zip(a.bursts, a.bursts[1:], strict=False)]
    decode = [a.decode_rate for a in answers if a.decode_rate]
    out: dict[str, Any] = {
        "answers": len(answers),
        "tokens": tokens,
        "user_tokens_per_second": quantile([a.rate for a in answers], 0.5),
        "ttft": quantile([a.bursts[0][0] for a in answers], 0.5),
        "ttft_p99": quantile([a.bursts[0][0] for a in answers], 0.99),
        "tpot": quantile([1 / r for r in decode], 0.5),
        "itl_p50": quantile(gaps, 0.5),
        "itl_p99": quantile(gaps, 0.99),
        "tokens_per_pass": tokens / passes if passes else None,
    }
    if not arm.drafts:
        return out
    predicted = _predicted(stats, passes, costs) if costs else {}
    return {
        **out,
        "speedup": _interval(both, lambda a: a.rate),
        "decode_speedup": _interval(both, lambda a: a.decode_rate),
        "drafted": stats.num_draft_tokens,
        "accepted": stats.num_accepted_draft_tokens,
        "acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_per_position": stats.acceptance_per_position,
        "acceptance_histogram": stats.acceptance_histogram,
        **predicted,
    }


def _interval(both: Seq[tuple[Answer, Answer]], rate: Any) -> dict[str, Any] | None:
    ratios: dict[str, list[float]] = {}
    for plain, fast in both:
        before, after = rate(plain), rate(fast)
        if before and after:
            ratios.setdefault(fast.question.id, []).append(after / before)
    found: Interval | None = median_ratio(ratios)  # type: ignore[arg-type]
    return None if found is None else asdict(found)


def _predicted(stats: SpeculativeStats, passes: int, costs: Costs) -> dict[str, Any]:
    """From acceptance by position, the draft lengths that occurred, the width curve and the measured cost of a draft."""
    acceptance = stats.acceptance_per_position
    lengths: dict[int, float] = dict(Counter(stats.per_step_drafted))
    lengths[0] = max(0, passes - stats.num_spec_steps)
    k, gain = best_k(acceptance, costs)
    asked = max(stats.num_spec_tokens, 1)
    return {
        "predicted_speedup": speedup(acceptance, lengths, costs) if passes else None,
        "best_k": k,
        "best_k_speedup": gain,
        "break_even_alpha": break_even(asked, costs),
        "draft_seconds": costs.draft,
    }


def _totals(groups: Seq[Group]) -> dict[str, Any]:
    """What the machine did: throughput over all users, and where the time went."""
    seconds = sum(g.seconds for g in groups)
    fed = sum(g.fed_drafts for g in groups)
    return {
        "seconds": seconds,
        "total_tokens_per_second": sum(len(a.token_ids) for g in groups for a in g.answers) / seconds if seconds else None,
        "split": {part: sum(g.split[part] for g in groups) for part in SPLIT},
        "steps": sum(g.steps for g in groups),
        "fed_drafts": fed,
        "wasted_rows": fed - sum(a.stats.num_accepted_draft_tokens for g in groups for a in g.answers),
    }


def _record(group: Group, a: Answer) -> dict[str, Any]:
    """One answer, for readers who want to count for themselves."""
    return {
        "arm": group.arm,
        "batch": group.batch,
        "temperature": group.temperature,
        "repeat": group.repeat,
        "question": a.question.id,
        "category": a.question.category,
        "turn": a.turn,
        "prompt_tokens": len(a.prompt_ids),
        "tokens": len(a.token_ids),
        "seconds": a.seconds,
        "ttft": a.bursts[0][0],
        "tpot": 1 / a.decode_rate if a.decode_rate else None,
        "passes": a.passes,
        "drafted": a.stats.num_draft_tokens,
        "accepted": a.stats.num_accepted_draft_tokens,
        "token_ids": a.token_ids,
    }
