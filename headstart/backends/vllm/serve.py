"""`headstart serve --backend vllm`: `vllm serve` as a child, told what headstart was told; its health watched, its end handled.

vLLM's own server and not ours in front of it: then every route does what vLLM's documents say, and several API processes,
data-parallel ranks and nodes work as they do there.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from types import FrameType

from headstart.backends.commands import Door, vllm_arguments
from headstart.backends.vllm.engine import check_pair, prepare
from headstart.backends.vllm.installation import environment
from headstart.backends.vllm.translate import flags
from headstart.core.config import EngineConfig
from headstart.core.errors import ConfigError, EngineError

_POLL = 1.0  # seconds between looks at the server's health
_COUNT = 10.0  # and at its counters, until the first drafts
_ENOUGH = 256  # generated tokens after which it is odd that nothing was drafted
_COUNTER = re.compile(
    r"^vllm:(spec_decode_num_draft_tokens|spec_decode_num_accepted_tokens|generation_tokens)_total(?:{[^}]*})? (\S+)", re.M
)


def serve(config: EngineConfig, door: Door, note: Callable[[str], None], quiet: bool = False) -> None:
    """Run until a signal. Raises ConfigError before anything loads, EngineError when the server ends by itself."""
    installation, settled = prepare(config)
    check_pair(config)
    door = replace(door, port=free_port(door.host, door.port))
    arguments = settled | vllm_arguments(config, door)
    words = [installation.python, "-m", "headstart.backends.vllm.launch", "serve", *flags(arguments)]
    with environment(installation, config.hf_token) as variables:
        if door.api_key:
            variables["VLLM_API_KEY"] = door.api_key  # not on the command line, where every user of the machine reads it
        if quiet:
            variables.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(door.host, f"[{door.host}]" if ":" in door.host else door.host)
        watch = Watch(f"http://{host}:{door.port}", config.speculative.method != "none", bool(door.api_key), note)
        threading.Thread(target=watch.run, name="watch", daemon=True).start()
        asked, code = run_to_the_end(words, variables, note)
        watch.over = True
    if not asked:
        raise EngineError(f"vllm serve ended with code {code}: its log above says why")


def free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises ConfigError when it is taken, before anything loads."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except (OSError, OverflowError) as e:
            why = getattr(e, "strerror", None) or str(e)
            raise ConfigError(f"--host {host} --port {port} cannot be listened on ({why}): choose another port") from None
        return int(sock.getsockname()[1])


def run_to_the_end(words: Seq[str], variables: Mapping[str, str], note: Callable[[str], None]) -> tuple[bool, int]:
    """Run a command in a process group of its own; whether a signal asked for its end, and its exit code.

    The first signal is handed on, the second one ends the whole group at once. Nothing of the group stays.
    """
    asked: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def hand_on(to: subprocess.Popen[bytes]) -> None:
        note("stopping vLLM; a second signal ends it at once")
        to.send_signal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if len(asked) == 1:
                hand_on(process)
            else:
                os.killpg(process.pid, signal.SIGKILL)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        process = subprocess.Popen(words, env=variables, start_new_session=True)
        if asked:  # while it was being started
            hand_on(process)
        code = process.wait()
        return bool(asked), code
    finally:
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """Says when the server answers, and whether drafts are made once it has generated something."""

    def __init__(self, url: str, drafts: bool, guarded: bool, note: Callable[[str], None]) -> None:
        self.url, self.drafts, self.guarded, self.note = url, drafts, guarded, note
        self.over = False
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy is set: it is on this machine

    def run(self) -> None:
        """Look until there is nothing more to say."""
        while not self.over and self._get("/health") is None:
            time.sleep(_POLL)
        if self.over:
            return
        self.note(f"API: {self.url}/v1 (vLLM's server)")
        if self.guarded:
            self.note("the key guards /v1 only, /metrics and vLLM's other routes are open: put a proxy in front of an open network")
        body = '{"messages": [{"role": "user", "content": "Hello"}]}'
        key = " -H 'Authorization: Bearer KEY'" if self.guarded else ""
        self.note(f"try: curl {self.url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'")
        while self.drafts and not self.over:
            time.sleep(_COUNT)
            self.drafts = self._undecided()

    def _undecided(self) -> bool:
        counted: dict[str, float] = {}
        for name, value in _COUNTER.findall(self._get("/metrics") or ""):
            counted[name] = counted.get(name, 0.0) + float(value)
        drafted = counted.get("spec_decode_num_draft_tokens", 0)
        if drafted:
            self.note(f"drafts are made: {drafted:.0f} so far, {counted.get('spec_decode_num_accepted_tokens', 0):.0f} accepted")
        elif counted.get("generation_tokens", 0) >= _ENOUGH:
            self.note("warning: vLLM has drafted nothing so far: its log says why, or the texts do not repeat themselves")
        else:
            return True
        return False

    def _get(self, path: str) -> str | None:
        try:
            with self._direct.open(self.url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError, ValueError):
            return None
