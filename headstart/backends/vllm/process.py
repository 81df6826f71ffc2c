"""A worker process: started, spoken to in JSON lines, ended with everything that it started. Knows nothing of what is said.

A worker that dies, or says nothing for too long, is an EngineError with its last words; never a wait without end.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence as Seq
from typing import IO, Any

from headstart.core.errors import EngineError

_KEPT = 40  # lines of its standard error
_SHOWN = 3
_PATIENCE = 5.0  # seconds to end by itself


class Worker:
    """Invariant: while it lives, `answers` fills with what it says; None in it means that it has ended."""

    def __init__(self, command: Seq[str], environment: dict[str, str]) -> None:
        self.words: collections.deque[str] = collections.deque(maxlen=_KEPT)
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a group of its own: Ctrl-C is ours to handle, and its children can be ended with it
        )
        self._reader = threading.Thread(target=_read, args=(self.process.stdout, self.answers), daemon=True)
        self._listener = threading.Thread(target=_keep, args=(self.process.stderr, self.words), daemon=True)
        self._reader.start()
        self._listener.start()
        self.close = weakref.finalize(self, _end, self.process)  # also when nobody closes it, and at exit

    def send(self, message: dict[str, Any]) -> None:
        """Tell it something. Raises EngineError when it has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise self.dead() from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """What it says next. Raises EngineError when it has ended, or said nothing for so long; it is ended then."""
        try:
            message = self.answers.get(timeout=seconds)
        except queue.Empty:
            self.close()
            raise EngineError(f"vLLM has said nothing for {seconds:.0f} seconds and was ended; {self.last_words()}") from None
        if message is None:
            self.answers.put(None)  # for whoever asks next
            raise self.dead()
        return message

    def dead(self) -> EngineError:
        """The error of a worker that has gone, after it has been cleared away."""
        self.close()
        self._listener.join(timeout=_PATIENCE)
        code = self.process.returncode
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"with code {code}"
        return EngineError(f"vLLM's process ended {how}; {self.last_words()}")

    def last_words(self) -> str:
        """The end of its standard error: the lines about errors where there are any."""
        telling = [line for line in self.words if "Error" in line] or list(self.words)
        return "it last said: " + " | ".join(telling[-_SHOWN:]) if telling else "it said nothing"


def _read(stream: IO[str], answers: queue.Queue[dict[str, Any] | None]) -> None:
    for line in stream:
        with contextlib.suppress(ValueError):  # not ours
            answers.put(json.loads(line))
    answers.put(None)


def _keep(stream: IO[str], words: collections.deque[str]) -> None:
    loud = bool(os.environ.get("HEADSTART_DEBUG"))
    for line in stream:
        if line.strip():
            words.append(line.strip())
        if loud:
            sys.stderr.write(line)


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its input asks it to go; then its whole group is made to."""
    with contextlib.suppress(OSError, ValueError):
        assert process.stdin is not None
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
