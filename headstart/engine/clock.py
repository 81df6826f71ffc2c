"""Where an engine's time goes: seconds by part of the step, and the draft rows that were fed.

On an accelerator a pass returns before it is done, so its time shows where its result is first read: in `verify`.
"""

from __future__ import annotations

import time

PARTS = ("draft", "target", "verify", "other")


class StepClock:
    """Invariant: everything only grows; who wants the figures of a stretch takes the difference of two `read`s."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.steps = 0
        self.drafts = 0  # draft rows that went through the target, judged or not
        self._since = self._begun = 0.0

    def start(self) -> None:
        """A step begins."""
        self.steps += 1
        self._since = self._begun = time.perf_counter()

    def lap(self, part: str) -> float:
        """What passed since the last call belongs to `part`; returns it."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        self.seconds[part] += passed
        return passed

    @property
    def step_seconds(self) -> float:
        """From the start of this step to the last lap."""
        return self._since - self._begun

    def read(self) -> dict[str, float]:
        """All figures now: seconds by part, `steps`, `drafts`."""
        return {**self.seconds, "steps": self.steps, "drafts": self.drafts}
