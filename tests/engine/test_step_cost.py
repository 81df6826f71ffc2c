"""The engine's own cost of a step, counted: Python calls and torch operations beside the model's pass. A guard, not a benchmark.

Counts do not depend on the machine. The bounds are a tenth above what a step takes, with the kernels or without:
know why before raising one.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, make_drafter, make_engine


class _Counter(TorchDispatchMode):
    """A context that counts Python calls and torch operations, but not those inside the model's own forward."""

    def __init__(self, model: EchoModel, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls = self.operations = 0
        self.inside = False
        forward = model.forward

        def uncounted(*args: Any) -> torch.Tensor:
            self.inside = True
            try:
                return forward(*args)
            finally:
                self.inside = False

        monkeypatch.setattr(model, "forward", uncounted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += not self.inside
        return func(*args, **(kwargs or {}))

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not self.inside and "/headstart/" in frame.f_code.co_filename:
            self.calls += 1


def cost(monkeypatch: pytest.MonkeyPatch, drafter: str, prompt: int, sequences: int, params: SamplingParams) -> tuple[float, float]:
    """(our Python calls, resumed generators included; torch operations) per step, over ten decoding steps."""
    target = EchoModel()
    engine = make_engine(target, make_drafter(drafter, target), share=False, max_rows=2048, blocks=2000, max_len=2048, k=4)
    for i in range(sequences):
        engine.add(str(i), None, [(j * j + i) % target.vocab for j in range(prompt)], params)
    while any(len(s.tokens) == s.prompt_len for s in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    counter, steps = _Counter(target, monkeypatch), 10
    before = engine.clock.read()
    sys.setprofile(counter.profile)
    try:
        with counter:
            for _ in range(steps):
                engine.step()
    finally:
        sys.setprofile(None)
    assert engine.clock.read()["steps"] - before["steps"] == steps and len(engine.scheduler.running) == sequences
    return counter.calls / steps, counter.operations / steps


GREEDY = SamplingParams(temperature=0, max_tokens=400)
SAMPLED = SamplingParams(temperature=1, max_tokens=400, top_p=0.9, seed=1)


@pytest.mark.parametrize(
    ("drafter", "params", "calls", "operations"),
    [("none", GREEDY, 95, 9), ("ngram", GREEDY, 130, 9), ("none", SAMPLED, 115, 56), ("ngram", SAMPLED, 155, 60)],
)
def test_a_step_stays_cheap(monkeypatch: pytest.MonkeyPatch, drafter: str, params: SamplingParams, calls: int, operations: int) -> None:
    got = cost(monkeypatch, drafter, 50, 1, params)
    assert got[0] <= calls and got[1] <= operations, got


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_step_hardly_grows_with_the_text(monkeypatch: pytest.MonkeyPatch, drafter: str) -> None:
    short, long = (cost(monkeypatch, drafter, n, 1, GREEDY) for n in (100, 500))
    assert long[1] <= 1.2 * short[1]
    assert long[0] - short[0] <= 10


def test_a_batch_costs_no_more_than_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    one, eight = (cost(monkeypatch, "none", 50, n, GREEDY) for n in (1, 8))
    assert eight[0] <= 8 * one[0] and eight[1] <= 1.2 * 8 * one[1]
