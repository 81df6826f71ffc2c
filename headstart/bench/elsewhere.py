"""The bench on another backend: every arm is an engine of its own, loaded, asked everything, and ended before the next one.

Its arms can so not take turns, and nobody tells where the time went: no width curve, no split, no prediction. What is measured and
judged is the rest: answers, their times, drafts made and accepted, and whether the output is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from headstart.api import LLM
from headstart.bench.arms import PLAIN, Arm, plain_arm
from headstart.bench.run import Answer, Group, Plan, Run, Talk, encode, question_seed, warm_plan
from headstart.bench.summary import document
from headstart.bench.verdict import JOINT, LAW_PROMPT, Verdict, judge_tokens, law_verdict
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


def _ask(llm: LLM, questions: Seq[Any], plan: Plan, group: Group, advance: Callable[[int], None], stop: Callable[[], bool]) -> None:
    """Answer a group of questions together, each conversation going on as soon as its answer stands; fills `group`."""
    engine: Any = llm.engine
    engine.forget()  # equal work for every arm: no prompt is remembered from the one before
    live: dict[str, Talk] = {}
    start = time.perf_counter()

    def ask(talk: Talk) -> None:
        ids = encode(llm, talk.messages)
        if len(ids) + (plan.params.max_tokens or 1) > engine.target.max_len:
            left = range(talk.turn, len(talk.question.turns))
            group.skipped += [(talk.question.id, turn) for turn in left]
            advance(len(left))
            return
        name = f"bench-{talk.slot}-{talk.turn}"
        talk.asked, talk.bursts = time.perf_counter(), []
        seed = question_seed(plan, group.repeat, talk)
        engine.add(name, None, ids, replace(plan.params, temperature=group.temperature, seed=seed))
        live[name] = talk

    try:
        for slot, question in enumerate(questions):
            ask(Talk(question, slot))
        while live:
            if stop():
                group.complete = False
                return
            touched = engine.step()
            now = time.perf_counter()
            for request in touched:
                talk, made = live[request.id], request.outputs[0]
                talk.bursts.append((now - talk.asked, len(made.token_ids)))
                if request.finished:
                    del live[request.id]
                    group.answers.append(_answer(request.output(), talk))
                    group.fed_drafts += request.stats[0].num_draft_tokens
                    advance(1)
                    if talk.go_on(made.text):
                        ask(talk)
        group.seconds = time.perf_counter() - start
    finally:
        for name in live:
            engine.abort(name)


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
