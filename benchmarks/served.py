"""A `headstart serve` process of its own, for scripts that talk to it as clients do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO = "~/.cache/headstart/SmolLM2-135M-Instruct.Q4_1.gguf"


@contextlib.contextmanager
def served(*arguments: str, log: Path | None = None) -> Iterator[str]:
    """Its address once it answers. Raises RuntimeError when it ends before."""
    command = [sys.executable, "-m", "headstart", "serve", *arguments, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "API: http" in line:
                break
        else:
            raise RuntimeError("the server ended: " + "".join(said)[-500:])
        with open(log or os.devnull, "w", encoding="utf-8") as sink:
            drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=sink)  # a full pipe would stop the server
            url = said[-1].partition("API: ")[2].partition("/v1")[0]
            end = time.monotonic() + 30
            while time.monotonic() < end:
                with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health") as answer:
                    if answer.status == 200:
                        break
                time.sleep(0.05)
            try:
                yield url
            finally:
                process.terminate()
                process.wait(30)
                drain.wait(10)
