"""What steps and drafts take here, measured with the engine's own steps: its work beside the passes is in the figures.

Two contexts are measured, the shortest and the longest of the texts; between them times are linear, since attention is.
"""

from __future__ import annotations

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
_ROUNDS = 4
_SECONDS = 25.0  # after so long at one context, no further round is begun
_DRAFT_STEPS = 8


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
    """So many drafts as the next width asks for, in turns; all of them fall, so that every step gives one token."""

    def __init__(self, widths: Seq[int], vocab: int) -> None:
        self.widths, self.vocab, self.at = list(widths), vocab, 0

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        count = self.widths[self.at % len(self.widths)] - 1
        self.at += 1
        return [(seq.tokens[-1] + 1 + i) % self.vocab for i in range(count)]


def measure_steps(
    llm: LLM, texts: Seq[Trajectory], params: SamplingParams, rule: str, most: int, stop: Callable[[], bool]
) -> dict[int, dict[int, float]]:
    """`Costs.steps`: medians over some rounds of steps of 1..most + 1 rows, widths in turns; over one round after `stop()`.

    Raises ConfigError when the context has no room for them.
    """
    widths = sorted({w for w in WIDTHS if w <= most} | {most + 1})
    out = {}
    longest = llm.engine.target.max_len - len(widths) * (_ROUNDS + 2)
    low, high = (max(1, min(c, longest)) for c in contexts(texts))
    for context in sorted({low, max(high, min(2 * low, longest))}):
        tokens = [t for text in texts for t in (*text.prompt, *text.answer)]
        while len(tokens) < context:
            tokens += tokens
        timed = _timed(llm, tokens[:context], params, rule, widths, stop)
        if not {1, most + 1} <= timed.keys():
            raise ConfigError(f"a context of {llm.engine.target.max_len} tokens has no room to time steps: raise --max-model-len")
        out[context] = {m: statistics.median(times) for m, times in timed.items()}
    return out


def _timed(
    llm: LLM, prompt: list[int], params: SamplingParams, rule: str, widths: Seq[int], stop: Callable[[], bool]
) -> dict[int, list[float]]:
    """Seconds of steps by their rows, after a prompt."""
    engine = llm.engine
    order = [w for pair in zip(widths, reversed(widths), strict=True) for w in pair][: len(widths)]  # no width always follows a narrower
    order += [w for w in widths if w not in order]
    engine.use(_Wrong(order, engine.target.vocab), max(widths) - 1, rule, None)
    engine.pool.forget()
    steps = len(order) * (_ROUNDS + 1)
    request = engine.add("costs", None, list(prompt), _going(params, steps + max(widths) + 1))
    found: dict[int, list[float]] = {m: [] for m in widths}
    began = time.perf_counter()
    try:
        while not request.completions[0].seq.produced:
            engine.step()
        for i in range(steps):
            round_ = i // len(order)
            if request.finished or (i % len(order) == 0 and round_ > 1 and (stop() or time.perf_counter() - began > _SECONDS)):
                break
            before, start = engine.clock.read(), time.perf_counter()
            engine.step()
            took = time.perf_counter() - start
            after = engine.clock.read()
            rows = 1 + int(after["drafts"] - before["drafts"])
            if round_ and rows in found:  # the first round warms up
                found[rows].append(took - (after["draft"] - before["draft"]))
    finally:
        engine.abort("costs")
    return {m: times for m, times in found.items() if times}


def _going(params: SamplingParams, tokens: int) -> SamplingParams:
    return replace(params, max_tokens=tokens, ignore_eos=True, seed=0)


def measure_draft(
    llm: LLM, arm: Arm, text: Trajectory, params: SamplingParams, longest: int, stop: Callable[[], bool]
) -> tuple[float, float]:
    """(a, b) of `Costs.drafts`: from steps with one draft and with several, on a text of the target."""
    few, many = 1, min(6, longest)
    times = {k: _drafting(llm, arm, text, params, k, stop) for k in {few, many}}
    if few == many:
        return 0.0, times[few]
    each = max(0.0, (times[many] - times[few]) / (many - few))
    return max(0.0, times[few] - each), each


def _drafting(llm: LLM, arm: Arm, text: Trajectory, params: SamplingParams, k: int, stop: Callable[[], bool]) -> float:
    """Median seconds of drafting k tokens, catching up included as it happens."""
    engine = llm.engine
    engine.use(arm.drafter, k, arm.verify, None)
    engine.pool.forget()
    request = engine.add("drafting", None, list(text.prompt), _going(params, (_DRAFT_STEPS + 2) * (k + 1)))
    times: list[float] = []
    try:
        while not request.completions[0].seq.produced:
            engine.step()
        while len(times) < _DRAFT_STEPS + 1 and not request.finished and not (times and stop()):
            before = engine.clock.read()
            engine.step()
            times.append(engine.clock.read()["draft"] - before["draft"])
    finally:
        engine.abort("drafting")
        engine.use(plain_arm().drafter, 0, None, None)
    return statistics.median(times[1:] or times or [0.0])
