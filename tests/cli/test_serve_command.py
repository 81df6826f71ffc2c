"""`headstart serve` as a command: its banner, and one line with the next step when it cannot serve."""

from __future__ import annotations

import builtins
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from headstart.cli.serve import banner
from headstart.server.settings import Settings
from tests.tiny import write_llama

Call = Callable[..., tuple[int, str, str]]


def test_help_is_quick_to_import_and_names_the_options(headstart: Call) -> None:
    code, out, _ = headstart("serve", "--help")
    assert code == 0 and all(o in out for o in ("--host", "--port", "--api-key", "--max-queue", "--metrics-prefix", "--draft"))
    probe = "import sys, headstart.cli.serve; print({'fastapi', 'uvicorn', 'torch', 'prometheus_client'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip() == "set()"


def test_the_banner_is_short_and_can_be_copied() -> None:
    notes = [f"note {i}" for i in range(9)]
    for settings in (Settings(), Settings(host="0.0.0.0"), Settings(host="0.0.0.0", api_keys=("k",))):
        lines = banner(settings, notes, "http://127.0.0.1:8000")
        assert len(lines) <= 8 and lines[-1].startswith("try: curl http://127.0.0.1:8000/v1/chat/completions")
        assert any("no API key" in line for line in lines) == (settings.host == "0.0.0.0" and not settings.api_keys)


def test_a_warning_of_the_load_is_said_once(headstart: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading says it at once; the banner has the other lines."""

    def run(settings: Settings, load: Callable[[], Any], ready: Callable[[str], None]) -> None:
        load()
        ready("http://127.0.0.1:8000")

    monkeypatch.setattr("headstart.server.run.serve", run)
    larger = tmp_path / "larger"
    shutil.copytree(tiny, larger)
    write_llama(larger, vocab=json.loads((tiny / "config.json").read_text())["vocab_size"], layers=4)
    code, out, err = headstart("serve", tiny, "--draft", larger, "--device", "cpu", "--kv-cache-memory", "8MiB")
    assert (code, out) == (0, "") and err.count("are they swapped?") == 1
    assert err.count("speculation: ") == 1 and "try: curl" in err.splitlines()[-1]


def test_what_cannot_be_served_is_one_line(headstart: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        keys = tmp_path / "keys"
        keys.write_text("\n")
        for argv, words in (
            ((), "headstart serve MODEL"),
            ((tiny, "--model", "other/one"), "contradicts"),
            ((tiny, "--port", port), "choose another port"),
            ((tiny, "--port", 99999), "port=99999"),
            ((tmp_path, "--port", 0), "config.json"),
            ((tiny, "--port", 0, "--api-key", "schlüssel"), "ASCII"),
            ((tiny, "--api-key-file", keys), "holds no key"),
            ((tiny, "--chat-template", "nowhere"), "cannot be read"),
            ((tiny, "--per-request-spec-decode-metrics", "all"), "summary"),
            ((tiny, "--metrics-prefix", "a b"), "metrics_prefix"),
            ((tiny, "--max-body", "many"), "max_body"),
        ):
            code, out, err = headstart("serve", *argv)
            assert (code, out) == (2, "") and words in err.splitlines()[-1], (argv, err)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "fastapi":
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    code, _, err = headstart("serve", tiny)
    assert code == 2 and "pip install 'headstart[server]'" in err
