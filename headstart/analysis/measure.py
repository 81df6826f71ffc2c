"""The same drafters, run: what was predicted beside what is measured, on the same questions, draft lengths held constant."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from headstart.analysis.pool import Pooled, pooled
from headstart.api import LLM
from headstart.bench.arms import PLAIN, Arm, plain_arm
from headstart.bench.run import Plan, Run, execute, pairs


def measure(llm: LLM, arms: Seq[Arm], plan: Plan, advance: Callable[[int], None], stop: Callable[[], bool]) -> dict[str, dict[str, Any]]:
    """What each drafter did, by its name; draft lengths and rules are those of its arm.

    Plain decoding and all drafters answer every question in turns. What was not run to its end is left out.
    """
    run = execute(llm, [plain_arm(), *(replace(arm, pace=None) for arm in arms)], plan, advance, stop)
    out = {}
    for arm in arms:
        both = list(pairs(run, arm.name, plan.batches[0], plan.temperatures[0]))
        if both:
            out[arm.draft] = {"k": arm.k, **_figures(run, both)}
    return out


def _figures(run: Run, both: Seq[tuple[Any, Any]]) -> dict[str, Any]:
    """Decoding alone: tokens after the first burst, over the time since it."""
    times: dict[str, list[float]] = {}
    for plain, fast in both:
        before, after = _decoding(plain), _decoding(fast)
        if before and after:
            own = times.setdefault(fast.question.id, [0.0, 0.0])
            # Under sampling the texts differ in length: time for as many tokens as plain decoding gave.
            own[0] += before[1]
            own[1] += after[1] * before[0] / after[0]
    found: Pooled | None = pooled(list(times.values()))
    tokens, passes = sum(len(a.token_ids) for _, a in both), sum(a.passes for _, a in both)
    drafted, accepted = (sum(getattr(a.stats, f"num_{what}_tokens") for _, a in both) for what in ("draft", "accepted_draft"))
    same = sum(p.token_ids == a.token_ids for p, a in both)
    return {
        "speedup": found and found.as_dict(),
        "tokens_per_pass": tokens / passes,
        "drafted": drafted,
        "accepted": accepted,
        "answers": len(both),
        "identical": same,
        "plain_tokens_per_second": _rate(run, PLAIN),
    }


def _decoding(answer: Any) -> tuple[int, float] | None:
    """(tokens, seconds) after the first burst."""
    tokens = len(answer.token_ids) - answer.bursts[0][1]
    return (tokens, answer.seconds - answer.bursts[0][0]) if tokens > 0 else None


def _rate(run: Run, arm: str) -> float | None:
    each = [_decoding(a) for g in run.groups if g.arm == arm for a in g.answers]
    found = [e for e in each if e]
    return sum(n for n, _ in found) / sum(s for _, s in found) if found else None
