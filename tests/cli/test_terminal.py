"""What a terminal shows: accepted drafts marked with and without colour, nothing of the model's that drives it, Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.cli.show import StreamPrinter, summary
from headstart.core.outputs import CompletionOutput, RequestMetrics, RequestOutput, SpeculativeStats


def completion(*pieces: tuple[str, str]) -> CompletionOutput:
    texts = [text for text, _ in pieces]
    return CompletionOutput(0, "".join(texts), list(range(len(texts))), token_texts=texts, origins=[origin for _, origin in pieces])


def printed(*outputs: CompletionOutput, marks: bool = True) -> str:
    stream = io.StringIO()
    printer = StreamPrinter(stream, marks)
    for output in outputs:
        printer.update(output)
    return stream.getvalue()


def test_accepted_drafts_are_underlined_and_green(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    first = completion(("a ", "target"), ("b ", "draft"))
    later = completion(("a ", "target"), ("b ", "draft"), ("c", "recovered"), ("d", "bonus"))
    assert printed(first, later) == "a \x1b[4;32mb \x1b[0mcd"


def test_no_color_keeps_the_underline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(completion(("a", "draft"))) == "\x1b[4ma\x1b[0m"


def test_text_that_was_held_back_is_written_once() -> None:
    held = completion(("ab", "target"), ("", "draft"))
    whole = completion(("abc", "target"), ("de", "bonus"), ("f", "target"))
    assert printed(held, held, whole) == "abcdef" == printed(held, whole, marks=False)


def test_a_long_text_comes_out_whole() -> None:
    pieces = [(f"{i} ", "target") for i in range(300)]
    assert printed(*(completion(*pieces[:n]) for n in range(1, 301, 3)), completion(*pieces)) == "".join(text for text, _ in pieces)


def test_a_model_cannot_drive_the_terminal() -> None:
    assert printed(completion(("a\x1b]0;x\x07\r\n\tb\x9b", "target"))) == "a�]0;x��\n\tb�"


def test_summary_without_a_single_step_has_no_division_by_zero() -> None:
    output = RequestOutput("0", "p", [1, 2], [completion(("a", "target"))], True, RequestMetrics())
    assert any("0/0" in line for line in summary([output], speculation=True))
    stats = SpeculativeStats(2, [2, 2], [2, 1])
    output.metrics = RequestMetrics(0.0, 0.0, 1.0, 2.0, num_passes=1, speculative_decoding=stats)
    assert any("3/4 (75 %) accepted, by position 100 50 %" in line for line in summary([output], speculation=True))


def in_terminal(argv: list[str], interrupt_after: int | None = None, **env: str) -> tuple[int, str]:
    """Run the command in a pseudo terminal; optionally press Ctrl-C after some characters of text."""
    main, side = pty.openpty()
    command = [sys.executable, "-m", "headstart", *argv]
    env = {**os.environ, "TERM": "xterm", **env}
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=subprocess.DEVNULL, env=env, start_new_session=True)
    os.close(side)
    seen = b""
    while True:
        try:
            chunk = os.read(main, 4096)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        seen += chunk
        if interrupt_after is not None and len(seen) > interrupt_after:
            process.send_signal(signal.SIGINT)
            interrupt_after = None
    os.close(main)
    return process.wait(60), seen.decode(errors="replace")


def test_in_a_terminal_drafts_are_marked(tiny: Path) -> None:
    argv = [
        "generate",
        "-m",
        str(tiny),
        "--draft",
        str(tiny),
        "--no-adaptive",
        "--kv-cache-memory",
        "8MiB",
        "--max-tokens",
        "12",
        "--ignore-eos",
        "hello",
    ]
    code, text = in_terminal(argv, NO_COLOR="1")
    assert code == 0 and "\x1b[4m" in text and not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


def test_ctrl_c_keeps_what_came_and_exits_with_130(tiny: Path) -> None:
    argv = ["generate", "-m", str(tiny), "--kv-cache-memory", "8MiB", "--max-tokens", "450", "--ignore-eos", "hello"]
    code, text = in_terminal(argv, interrupt_after=20)
    assert code == 130 and len(text) > 15 and text.endswith("\n")
