"""The bench on another backend: every arm is an engine of its own, loaded, asked everything, and ended before the next one.

Its arms can so not take turns, and nobody tells where the time went: no width curve, no split, no prediction. What is measured and
judged is the rest: answers, their times, drafts made and accepted, and whether the output is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from headstart.api import LLM
from headstart.bench.arms import PLAIN, Arm, plain_arm
from headstart.bench.run import Answer, Group, Plan, Run, Talk, converse, warm_plan
from headstart.bench.summary import document
from headstart.bench.verdict import JOINT, LAW_PROMPT, Verdict, judge_tokens, law_verdict
from headstart.bench.workload import Question
from headstart.core.errors import ConfigError
from headstart.core.outputs import RequestError, SpeculativeStats
from headstart.core.params import MAX_N, SamplingParams
from headstart.core.speculation import SpeculativeConfig
from headstart.draft.none import NoDrafter

Open = Callable[[SpeculativeConfig | None], LLM]
_ONCE = "arms ran one after the other, each in an engine of its own: what else the machine did may have fallen on one of them"


def make_arms(specs: Seq[dict[str, Any]], backend: str) -> list[tuple[Arm, SpeculativeConfig | None]]:
    """The plain arm, and one for each `speculative_config`. Raises ConfigError."""
    out: list[tuple[Arm, SpeculativeConfig | None]] = [(plain_arm(), None)]
    for given in specs:
        spec = SpeculativeConfig.from_dict(given, backend)
        what = (spec.model or spec.corpus or spec.method or "").rstrip("/").rpartition("/")[2]
        k = spec.num_speculative_tokens or 0
        out.append((Arm(f"{what} k={k}", NoDrafter(), str(spec.method), k, spec.verify or "rejection", model=spec.model), spec))
    return out


def measure_all(
    open_: Open,
    arms: Seq[tuple[Arm, SpeculativeConfig | None]],
    plan: Plan,
    source: str,
    samples: int,
    advance: Callable[[int], None],
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Measure and judge everything; the document of `summary`. Arguments as in `report.measure_all`."""
    run = Run(plan, [arm for arm, _ in arms])
    laws: dict[tuple[str, float], tuple[list[tuple[int, ...]], SpeculativeStats]] = {}
    llm: LLM | None = None
    for number, (arm, spec) in enumerate(arms):
        say(f"loading {arm.name}")
        llm = open_(spec)
        arm.notes += [note for note in llm.notes if note.startswith("speculation:") and spec is not None]
        try:
            say("answers")
            _ask_all(llm, arm, run, advance, stop)
            for t in plan.temperatures if not run.interrupted else ():
                if t > 0:
                    laws[arm.name, t] = _sample(llm, replace(plan.params, temperature=t), samples, number)
        finally:
            llm.shutdown()
        if run.interrupted:
            break
    assert llm is not None
    if not any(g.answers for g in run.groups):
        raise ConfigError(
            f"no question fits: the context has to hold the question and max_tokens={plan.params.max_tokens}; raise --max-model-len or "
            "lower --max-tokens"
        )
    found = document(llm, run, source, {}, _judge(llm, run, laws, samples))
    found["notes"].append(_ONCE)
    return found


def _ask_all(llm: LLM, arm: Arm, run: Run, advance: Callable[[int], None], stop: Callable[[], bool]) -> None:
    plan = run.plan
    for batch in plan.batches:
        for temperature in plan.temperatures:
            short = warm_plan(plan)
            first = [replace(q, turns=q.turns[:1]) for q in plan.groups(batch)[0]]
            for _ in range(plan.warmup):
                _ask(llm, first, short, Group(arm.name, batch, temperature, 0, 0), lambda _: None, stop)
            for repeat in range(plan.repeats):
                for index, questions in enumerate(plan.groups(batch)):
                    group = Group(arm.name, batch, temperature, repeat, index)
                    _ask(llm, questions, plan, group, advance, stop)
                    if not group.complete:
                        run.interrupted = True
                        return
                    run.groups.append(group)


def _ask(llm: LLM, questions: Seq[Question], plan: Plan, group: Group, advance: Callable[[int], None], stop: Callable[[], bool]) -> None:
    """Answer a group of questions together; fills `group`."""
    engine: Any = llm.engine
    engine.forget()  # equal work for every arm: no prompt is remembered from the one before

    def answer(request: Any, talk: Talk) -> Answer:
        group.fed_drafts += request.stats[0].num_draft_tokens
        return _answer(request.output(), talk)

    converse(llm, questions, plan, group, advance, stop, lambda prefill: engine.step(), lambda r: len(r.outputs[0].token_ids), answer)


def _answer(output: Any, talk: Talk) -> Answer:
    if output.error:
        raise RequestError(f"question {talk.question.id!r}: {output.error}")
    m, ids = output.metrics, output.outputs[0].token_ids
    return Answer(
        talk.question,
        talk.turn,
        talk.slot,
        output.prompt_token_ids,
        ids,
        talk.bursts,
        m.num_passes,
        m.speculative_decoding,
        m.num_preemptions,
    )


def _sample(llm: LLM, params: SamplingParams, samples: int, number: int) -> tuple[list[tuple[int, ...]], SpeculativeStats]:
    """Independent short completions; the arms get different seeds, since equal ones would hide a difference."""
    short = replace(params, max_tokens=JOINT, ignore_eos=True)
    sizes = [min(MAX_N, samples - done) for done in range(0, samples, MAX_N)]
    each = [replace(short, n=n, seed=1 + number * samples + i * MAX_N) for i, n in enumerate(sizes)]
    drawn = llm.generate([LAW_PROMPT] * len(each), each, use_tqdm=False)
    stats = SpeculativeStats.total(o.metrics.speculative_decoding for o in drawn)
    return [tuple(c.token_ids) for o in drawn for c in o.outputs], stats


def _judge(
    llm: LLM, run: Run, laws: dict[tuple[str, float], tuple[list[tuple[int, ...]], SpeculativeStats]], samples: int
) -> list[Verdict]:
    verdicts = []
    measured = {(g.arm, g.batch, g.temperature) for g in run.groups}
    for batch in run.plan.batches:
        for temperature in run.plan.temperatures:
            for arm in run.arms[1:]:
                if (arm.name, batch, temperature) not in measured:
                    continue
                if temperature == 0:
                    verdicts.append(judge_tokens(llm, run, arm, batch, temperature))
                elif batch == max(run.plan.batches) and (arm.name, temperature) in laws:
                    plain, (drawn, stats) = laws[PLAIN, temperature][0], laws[arm.name, temperature]
                    verdicts.append(law_verdict(arm, batch, temperature, plain, drawn, stats, samples, run.plan.seed))
    return verdicts
