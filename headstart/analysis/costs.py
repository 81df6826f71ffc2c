"""What steps and drafts take here, measured with the engine's own steps: its work beside the passes is in the figures.

Two contexts are measured, the shortest and the longest of the texts; between them times are linear, since attention is. Machines get
faster and slower as others use them, so nothing is compared with what was timed at another moment: every round times a plain step too,
and what counts is the median of the ratios to it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headstart.analysis.trajectory import Trajectory, contexts
from headstart.api import LLM
from headstart.bench.arms import Arm, plain_arm
from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from headstart.core.types import Sequence
from headstart.draft.base import LookupDrafter

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17)
_ROUNDS = 12
_FEWEST = 2  # rounds that are run however long they take
_SECONDS = 25.0  # after so long at one context, no further round is begun


@dataclass
class Costs:
    """Seconds. `steps[context][rows]`: a step whose pass has so many rows, drafting apart. `drafts[name]` = (a, b): making k drafts takes
    a + b k."""

    steps: dict[int, dict[int, float]]
    drafts: dict[str, tuple[float, float]] = field(default_factory=dict)

    def step(self, rows: Any, context: Any) -> np.ndarray:
        """Seconds of steps with so many rows after so many tokens: numbers or arrays."""
        at = sorted(self.steps)
        ends = [np.interp(rows, sorted(self.steps[c]), [self.steps[c][m] for m in sorted(self.steps[c])]) for c in at]
        part = np.clip((np.asarray(context) - at[0]) / max(at[-1] - at[0], 1), 0, 1)
        return ends[0] + (ends[-1] - ends[0]) * part

    def draft(self, name: str, k: Any) -> np.ndarray:
        """Seconds of making so many drafts."""
        a, b = self.drafts[name]
        return a + b * np.asarray(k)

    @property
    def middle(self) -> float:
        """The context for which c and s are told."""
        return sum(self.steps) / len(self.steps)

    @property
    def slope(self) -> float:
        """s: what a further row adds, up to five, in plain steps."""
        one = float(self.step(1, self.middle))
        return (float(self.step(5, self.middle)) - one) / 4 / one

    def relative(self, name: str) -> float:
        """c: what a draft takes, in plain steps."""
        return self.drafts[name][1] / float(self.step(1, self.middle))


class _Wrong(LookupDrafter):
    """So many drafts as a pass of `width` rows has; all of them fall, so that every step gives one token."""

    def __init__(self, vocab: int) -> None:
        self.width, self.vocab = 1, vocab

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        return [(seq.tokens[-1] + 1 + i) % self.vocab for i in range(self.width - 1)]


def measure_steps(
    llm: LLM, texts: Seq[Trajectory], params: SamplingParams, rule: str, most: int, stop: Callable[[], bool]
) -> dict[int, dict[int, float]]:
    """`Costs.steps`: steps of 1..most + 1 rows, some rounds of all widths in random order; a few rounds after `stop()`.

    Raises ConfigError when the context has no room for them.
    """
    widths = sorted({w for w in WIDTHS if w <= most} | {most + 1})
    out = {}
    room = llm.engine.target.max_len - (most + 1)
    rounds = min(_ROUNDS, room // 2 // len(widths) - 1)
    longest = room - len(widths) * (rounds + 1)
    if rounds < 1 or longest < 1:
        raise ConfigError(f"a context of {llm.engine.target.max_len} tokens has no room to time steps: raise --max-model-len")
    low, high = (max(1, min(c, longest)) for c in contexts(texts))
    for context in sorted({low, max(high, min(2 * low, longest))}):
        tokens = [t for text in texts for t in (*text.prompt, *text.answer)]
        while len(tokens) < context:
            tokens += tokens
        timed = _timed(llm, tokens[:context], params, rule, widths, rounds, stop)
        plain = statistics.median(each[1] for each in timed)
        out[context] = {m: plain * statistics.median(each[m] / each[1] for each in timed) for m in widths}
    return out


def _timed(
    llm: LLM, prompt: list[int], params: SamplingParams, rule: str, widths: Seq[int], rounds: int, stop: Callable[[], bool]
) -> list[dict[int, float]]:
    """For each round the seconds of steps by their rows, after a prompt; a first round warms up."""
    engine, order = llm.engine, random.Random(0)
    drafter = _Wrong(engine.target.vocab)
    engine.use(drafter, max(widths) - 1, rule, None)
    engine.pool.forget()
    request = engine.add("costs", None, list(prompt), _going(params, len(widths) * (rounds + 1) + max(widths) + 1))
    found: list[dict[int, float]] = []
    began = time.perf_counter()
    try:
        while not request.completions[0].seq.produced:
            engine.step()
        for round_ in range(rounds + 1):
            if round_ > _FEWEST and (stop() or time.perf_counter() - began > _SECONDS):
                break
            times = {}
            for drafter.width in order.sample(widths, len(widths)):
                times[drafter.width], _ = _step(llm)
            found.append(times)
    finally:
        engine.abort("costs")
    return found[1:]


def _step(llm: LLM) -> tuple[float, float]:
    """(seconds of a step but for its drafting, seconds of its drafting)."""
    before, start = llm.engine.clock.read()["draft"], time.perf_counter()
    llm.engine.step()
    took, drafting = time.perf_counter() - start, llm.engine.clock.read()["draft"] - before
    return took - drafting, drafting


def _going(params: SamplingParams, tokens: int) -> SamplingParams:
    return replace(params, max_tokens=tokens, ignore_eos=True, seed=0)


def measure_draft(
    llm: LLM, arm: Arm, text: Trajectory, params: SamplingParams, longest: int, costs: Costs, stop: Callable[[], bool]
) -> tuple[float, float]:
    """(a, b) of `Costs.drafts`: from steps with no draft, with one and with several in turns, on a text of the target.

    Catching up on the text is in `a`, as it happens. The prompt is cut where the context has no room for all steps.
    """
    few, many = 1, min(6, longest)
    turns = [0, few, few, many, many]  # of two equal ones the second counts: the first catches up on more
    engine = llm.engine
    engine.use(arm.drafter, many, arm.verify, None)
    engine.pool.forget()
    tokens = (_ROUNDS + 1) * sum(k + 1 for k in turns)
    prompt = list(text.prompt)[: max(1, engine.target.max_len - tokens - many - 1)]
    request = engine.add("drafting", None, prompt, _going(params, min(tokens, engine.target.max_len - len(prompt))))
    seq = request.completions[0].seq
    rounds: list[list[float]] = []
    try:
        while not seq.produced:
            engine.step()
        while len(rounds) <= _ROUNDS and not (len(rounds) > _FEWEST and stop()):
            times = []
            for k in turns:
                seq.params = replace(seq.params, num_speculative_tokens=k)
                times.append(_step(llm))
            if request.finished:
                break
            rounds.append([times[0][0], times[2][1], times[4][1]])
    finally:
        engine.abort("drafting")
        engine.use(plain_arm().drafter, 0, None, None)
    plain = float(costs.step(1, len(prompt)))
    at = {k: plain * statistics.median(r[i] / r[0] for r in rounds[1:] or rounds) if rounds else 0.0 for i, k in ((1, few), (2, many))}
    if few == many:
        return 0.0, at[few]
    each = max(0.0, (at[many] - at[few]) / (many - few))
    return max(0.0, at[few] - each), each
