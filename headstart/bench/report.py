"""All measurements of a bench in their order: the width curves, the run, the verdicts; then the document."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from headstart.api import LLM
from headstart.bench import width
from headstart.bench.arms import Arm
from headstart.bench.run import Plan, execute
from headstart.bench.summary import document
from headstart.bench.verdict import Verdict, judge_law, judge_tokens


def measure_all(
    llm: LLM,
    arms: Seq[Arm],
    plan: Plan,
    source: str,
    samples: int,
    advance: Callable[[int], None],
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Measure and judge everything; the document of `summary`.

    advance(n): n more answers are done. say(text): what is going on. stop(): whether to end early; what was measured until
    then is judged and reported. Raises ConfigError, RequestError.
    """
    say("width of passes")
    widths = {b: width.measure(llm, _widths(arms, b), b, stop) for b in plan.batches}
    say("answers")
    run = execute(llm, arms, plan, advance, stop)
    say("verdict")
    verdicts: list[Verdict] = []
    measured = {(g.arm, g.batch, g.temperature) for g in run.groups}
    for batch in plan.batches:
        for temperature in plan.temperatures:
            params = replace(plan.params, temperature=temperature)
            for arm in arms[1:]:
                if (arm.name, batch, temperature) not in measured:
                    continue
                if params.greedy or arm.verify == "match":
                    verdicts.append(judge_tokens(llm, run, arm, batch, temperature))
                elif batch == max(plan.batches):  # its samples run together, whatever the batch
                    law = judge_law(llm, arms[0], arm, params, batch, samples, stop)
                    verdicts += [law] if law else []
    run.interrupted |= stop()
    return document(llm, run, source, widths, verdicts)


def _widths(arms: Seq[Arm], batch: int) -> list[int]:
    """One sequence: the whole curve. More: up to the longest draft, since a pass of many is slow."""
    most = max(arm.k for arm in arms) + 1
    if batch == 1:
        return sorted({*width.WIDTHS, most})
    return sorted({m for m in (1, 2, 4, 8, 16) if m < most} | {most})
