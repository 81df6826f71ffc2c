"""The run: groups of questions, every arm in turns on each group, and what each answer took. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from headstart.api import LLM
from headstart.bench.arms import PLAIN, Arm, ReplayDrafter
from headstart.bench.workload import Question
from headstart.core import rand
from headstart.core.errors import ConfigError
from headstart.core.outputs import RequestError, SpeculativeStats
from headstart.core.params import SamplingParams
from headstart.engine.clock import PARTS
from headstart.engine.request import Request

SPLIT = ("prefill", *PARTS)
_WARM_TOKENS = 8


@dataclass(frozen=True)
class Plan:
    """What is run. `params` holds what all requests share; every group runs at every batch size and temperature."""

    questions: Seq[Question]
    params: SamplingParams
    batches: Seq[int] = (1,)
    temperatures: Seq[float] = (0.0,)
    repeats: int = 1
    warmup: int = 1
    seed: int = 0

    def groups(self, batch: int) -> list[list[Question]]:
        """The questions in groups of `batch`; the first ones come again where the last group would not be full."""
        count = -(-len(self.questions) // batch)
        return [[self.questions[(g * batch + i) % len(self.questions)] for i in range(batch)] for g in range(count)]

    def answers(self, arms: int) -> int:
        """How many answers the whole run makes, for a progress bar."""
        turns = sum(len(q.turns) for batch in self.batches for group in self.groups(batch) for q in group)
        return turns * arms * len(self.temperatures) * self.repeats


@dataclass
class Answer:
    """One turn of one question in one arm. Times are seconds; `bursts` are (time since the question was put, tokens so far)."""

    question: Question
    turn: int
    slot: int  # place in its group
    prompt_ids: list[int]
    token_ids: list[int]
    bursts: list[tuple[float, int]]
    passes: int
    stats: SpeculativeStats
    preemptions: int

    @property
    def seconds(self) -> float:
        """From the question to the last token."""
        return self.bursts[-1][0]

    @property
    def rate(self) -> float:
        """Tokens per second that the user sees, the wait for the first one included."""
        return len(self.token_ids) / self.seconds

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first burst; None where there was only one."""
        tokens = len(self.token_ids) - self.bursts[0][1]
        return tokens / (self.seconds - self.bursts[0][0]) if tokens else None


@dataclass
class Group:
    """One arm on one group of questions: the answers, the wall time, and where it went (`SPLIT`, seconds)."""

    arm: str
    batch: int
    temperature: float
    repeat: int
    index: int
    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    split: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPLIT, 0.0))
    steps: int = 0  # decoding steps, prefill not counted
    fed_drafts: int = 0
    skipped: list[tuple[str, int]] = field(default_factory=list)  # (question, turn): the context had no room for it
    complete: bool = True


@dataclass
class Run:
    """All that was measured. `interrupted` when the run was ended before its plan was."""

    plan: Plan
    arms: Seq[Arm]
    groups: list[Group] = field(default_factory=list)
    interrupted: bool = False


def execute(llm: LLM, arms: Seq[Arm], plan: Plan, advance: Callable[[int], None], stop: Callable[[], bool]) -> Run:
    """Run the plan. `advance(n)` is told of answers done (or skipped), `stop()` is asked between steps.

    Raises ConfigError when no question fits into the context, RequestError when a request failed on its own.
    """
    run = Run(plan, arms)
    for batch in plan.batches:
        for temperature in plan.temperatures:
            _warm_up(llm, arms, plan, batch, temperature, stop)
            for repeat in range(plan.repeats):
                for index, questions in enumerate(plan.groups(batch)):
                    for arm in _order(arms, index + repeat):
                        group = Group(arm.name, batch, temperature, repeat, index)
                        run_group(llm, arm, questions, plan, group, advance, stop)
                        if not group.complete:
                            run.interrupted = True
                            return run
                        run.groups.append(group)
                        if arm.name == PLAIN:
                            _teach(arms, group)
    if not any(g.answers for g in run.groups):
        raise ConfigError(
            f"no question fits: the context of {llm.engine.target.max_len} tokens has to hold the question and "
            f"max_tokens={plan.params.max_tokens}; raise --max-model-len or lower --max-tokens"
        )
    return run


def _order(arms: Seq[Arm], turn: int) -> list[Arm]:
    """Arms in turns, so that none always runs first. A replay needs the plain answer: then plain does."""
    turn %= len(arms)
    if any(a.synthetic is not None for a in arms):
        rest = list(arms[1:])
        turn %= max(len(rest), 1)
        return [arms[0], *rest[turn:], *rest[:turn]]
    return [*arms[turn:], *arms[:turn]]


def _teach(arms: Seq[Arm], group: Group) -> None:
    for arm in arms:
        if isinstance(arm.drafter, ReplayDrafter):
            arm.drafter.answers = {tuple(a.prompt_ids): a.token_ids for a in group.answers}


def _warm_up(llm: LLM, arms: Seq[Arm], plan: Plan, batch: int, temperature: float, stop: Callable[[], bool]) -> None:
    """Short answers first, thrown away: no arm pays for cold caches and first allocations."""
    short = warm_plan(plan)
    first = [replace(q, turns=q.turns[:1]) for q in plan.groups(batch)[0]]
    for _ in range(plan.warmup):
        for arm in arms:
            run_group(llm, arm, first, short, Group(arm.name, batch, temperature, 0, 0), lambda _: None, stop)


def warm_plan(plan: Plan) -> Plan:
    """The same with short answers."""
    return replace(plan, params=replace(plan.params, max_tokens=min(_WARM_TOKENS, plan.params.max_tokens or _WARM_TOKENS)))


def question_seed(plan: Plan, repeat: int, talk: Talk | Answer) -> int:
    """One seed for one question in all arms, by its id: in `match` mode they must then give the same text."""
    return rand.key(plan.seed, repeat, talk.turn, *talk.question.id.encode())


class Talk:
    """One conversation on its way. Invariant: `messages` end with the question that is being answered."""

    def __init__(self, question: Question, slot: int) -> None:
        self.question, self.slot, self.turn = question, slot, 0
        self.messages = [{"role": "user", "content": question.turns[0]}]
        self.asked = 0.0
        self.bursts: list[tuple[float, int]] = []

    def go_on(self, answer: str) -> bool:
        """Put the next question; False when there is none."""
        self.turn += 1
        if self.turn == len(self.question.turns):
            return False
        self.messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": self.question.turns[self.turn]}]
        return True


def run_group(
    llm: LLM, arm: Arm, questions: Seq[Question], plan: Plan, group: Group, advance: Callable[[int], None], stop: Callable[[], bool]
) -> None:
    """Answer a group of questions together by one arm; fills `group`."""
    engine = llm.engine
    engine.use(arm.drafter, arm.k, arm.verify, arm.pace)
    engine.pool.forget()  # equal work for every arm: no prompt is remembered from the one before

    def step(prefill: bool) -> list[Request]:
        before = engine.clock.read()
        touched = engine.step()
        _account(group, before, engine.clock.read(), prefill)
        return touched

    converse(llm, questions, plan, group, advance, stop, step, lambda request: len(request.completions[0].seq.output), _answer)


def converse(
    llm: LLM,
    questions: Seq[Question],
    plan: Plan,
    group: Group,
    advance: Callable[[int], None],
    stop: Callable[[], bool],
    step: Callable[[bool], Seq[Any]],
    made: Callable[[Any], int],
    answer: Callable[[Any, Talk], Answer],
) -> None:
    """Ask questions together, each conversation going on as soon as its answer stands; fills `group`.

    What engines differ in: step(whether a prompt is being read) gives the requests it touched, made(request) how many tokens
    one has by now, answer(request, talk) what is kept of one that is finished.
    """
    engine: Any = llm.engine
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
        seed = question_seed(plan, group.repeat, talk)
        talk.asked, talk.bursts = time.perf_counter(), []
        engine.add(name, None, ids, replace(plan.params, temperature=group.temperature, seed=seed))
        live[name] = talk

    try:
        for slot, question in enumerate(questions):
            ask(Talk(question, slot))
        while live:
            if stop():
                group.complete = False
                return
            touched = step(any(not talk.bursts for talk in live.values()))
            now = time.perf_counter()
            for request in touched:
                talk = live[request.id]
                talk.bursts.append((now - talk.asked, made(request)))
                if request.finished:
                    del live[request.id]
                    group.answers.append(answer(request, talk))
                    advance(1)
                    if talk.go_on(request.output().outputs[0].text):
                        ask(talk)
        group.seconds = time.perf_counter() - start
    finally:
        for name in live:
            engine.abort(name)


def _account(group: Group, before: dict[str, float], after: dict[str, float], prefill: bool) -> None:
    """Add what one step took: by part, or as a whole where a prompt was still being read."""
    spent = {name: after[name] - before[name] for name in after}
    group.fed_drafts += int(spent["drafts"])
    if prefill:
        group.split["prefill"] += sum(spent[part] for part in PARTS)
        return
    group.steps += int(spent["steps"])
    for part in PARTS:
        group.split[part] += spent[part]


def _answer(request: Request, talk: Talk) -> Answer:
    if request.error:
        raise RequestError(f"question {talk.question.id!r}: {request.error}")
    seq = request.completions[0].seq
    stats = request.completions[0].stats
    passes, stalls = request.metrics.num_passes, seq.preemptions
    return Answer(talk.question, talk.turn, talk.slot, request.prompt_ids, seq.output, talk.bursts, passes, stats, stalls)


def encode(llm: LLM, messages: list[dict[str, str]]) -> list[int]:
    """Token ids of a conversation: through the chat template where there is one, else as text, one turn a paragraph."""
    tokenizer: Any = llm.get_tokenizer()
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False).input_ids)
    return list(tokenizer("\n\n".join(m["content"] for m in messages)).input_ids)


def pairs(run: Run, arm: str, batch: int, temperature: float) -> Iterator[tuple[Answer, Answer]]:
    """(plain answer, the arm's answer) of the same question, turn and repeat, as far as both were measured."""
    found: dict[str, dict[tuple[int, int, int, int], Answer]] = {PLAIN: {}, arm: {}}
    for group in run.groups:
        if group.arm in found and (group.batch, group.temperature) == (batch, temperature):
            for a in group.answers:
                found[group.arm][group.repeat, group.index, a.slot, a.turn] = a
    for key, answer in found[arm].items():
        if key in found[PLAIN]:
            yield found[PLAIN][key], answer
