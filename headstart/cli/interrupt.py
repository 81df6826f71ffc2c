"""Ctrl-C while an answer streams: the first one asks it to end between two steps, the second one breaks off at once.

Raising KeyboardInterrupt inside a step could leave it half done; a flag that is read between steps cannot.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interruptible:
    """A context. Invariant: inside it `asked` says whether Ctrl-C came; outside, the old handler is in place."""

    def __init__(self) -> None:
        self.asked = False
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interruptible:
        if self._main:  # only the main thread may set handlers
            self._old = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._old)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
