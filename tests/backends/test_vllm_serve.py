"""`headstart serve --backend vllm` as a process, with a stand-in for `vllm serve`; and the command lines of other servers."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headstart.backends.commands import Door, equivalents
from headstart.backends.vllm.serve import Watch
from headstart.cli.main import run
from headstart.core.config import build_config

FAKE = Path(__file__).with_name("fake")
ROOT = Path(__file__).parents[2]

# A Python that has the stand-in and says so.
SHIM = """#!/bin/sh
case "$1" in
  -c) echo '{"vllm": "0.32.0", "torch": "2.9+cpu", "arctic": false, "ray": false, "extra": []}' ;;
  *) PYTHONPATH="$PYTHONPATH:FAKE" exec PYTHON "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bin") / "python"
    path.write_text(SHIM.replace("FAKE", str(FAKE)).replace("PYTHON ", sys.executable + " "))
    path.chmod(0o755)
    return str(path)


def begin(folders: dict[str, str], python: str, *options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "headstart", "serve", folders["target"], "--backend", "vllm", "--vllm-python", python, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*words, *options], stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"it ended with {process.wait()} before it said {word!r}")


def test_it_starts_says_where_and_ends_with_a_signal(folders: dict[str, str], python: str) -> None:
    options = ("--draft", "ngram", "--api-key", "secret", "--max-model-len", "64", "--tensor-parallel-size", "2", "--seed", "3")
    process = begin(folders, python, *options)
    url = wait_for(process, "API: ").split()[1].removesuffix("/v1")
    argv, key = json.loads(urllib.request.urlopen(url + "/argv", timeout=5).read())
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert key == "secret" and "secret" not in argv
    words = " ".join(argv)
    for part in ("--max-model-len 64", "--tensor-parallel-size 2", "--seed 3", "--host 127.0.0.1", '"method": "ngram"', "summary"):
        assert part in words
    with pytest.raises(OSError):
        urllib.request.urlopen(url + "/health", timeout=2)


def test_a_server_that_ends_by_itself_is_an_error(folders: dict[str, str], python: str) -> None:
    process = begin(folders, python, "--backend-option", "quantization=broken")
    assert "ended with code 1" in process.communicate(timeout=60)[1] and process.returncode == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-queue", "3"), "--max-queue has no effect with --backend vllm"),
        (("--open-metrics",), "--open-metrics"),
        (("--api-key", "a", "--api-key", "b"), "2 API keys"),
        (("--draft", "prediction"), "prediction"),
        (("--port", "99999"), "choose another port"),
        (("--backend-option", "nnodes"), "nnodes=2"),
        (("--tensor-parallel-size", "2", "--backend", "native"), "backend='vllm'"),
        (("--vllm-python", "/no/such"), "make vllm"),
    ],
)
def test_what_cannot_be_served_is_one_line(folders: dict[str, str], python: str, options: tuple[str, ...], words: str, capfd: Any) -> None:
    base = ["serve", folders["target"]]
    base += [] if "--backend" in options else ["--backend", "vllm"]
    base += [] if "--vllm-python" in options or "--backend" in options else ["--vllm-python", python]
    assert run([*base, *options]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert words in lines[-1] and lines[-1].startswith("headstart: error: ")


def printed(**arguments: Any) -> dict[str, str]:
    """Server -> its command and notes, each in one line."""
    config, _ = build_config("org/target", arguments)
    out: dict[str, str] = {}
    name = ""
    for line in equivalents(config, Door(served_name="t", port=9)):
        if line[2:] in ("vLLM", "SGLang", "llama.cpp"):
            name = line[2:]
        elif name:
            out[name] = f"{out.get(name, '')} {line}".replace("\\", " ")
    return {name: " ".join(text.split()) for name, text in out.items()}


def test_command_lines_of_other_servers() -> None:
    draft = {"model": "org/draft", "num_speculative_tokens": 4}
    found = printed(backend="vllm", tensor_parallel_size=4, max_model_len=512, speculative_config=draft)
    assert shlex.split(found["vLLM"])[:3] == ["vllm", "serve", "org/target"]
    assert "--tensor-parallel-size 4" in found["vLLM"] and '"draft_model"' in found["vLLM"] and "--host 127.0.0.1 --port 9" in found["vLLM"]
    for part in ("--tp-size 4", "--context-length 512", "STANDALONE", "--speculative-num-steps 4", "--speculative-num-draft-tokens 5"):
        assert part in found["SGLang"]
    for part in ("-m target.gguf", "--ctx-size 512", "--spec-type draft-simple", "--spec-draft-model draft.gguf --spec-draft-n-max 4"):
        assert part in found["llama.cpp"]
    assert "tensor_parallel_size=4 is not translated" in found["llama.cpp"]
    found = printed(speculative_config={"method": "ngram"}, kv_cache_memory="1GiB")
    assert '"prompt_lookup_max": 4' in found["vLLM"] and "--kv-cache-memory-bytes 1073741824" in found["vLLM"]
    assert "--speculative-ngram-max-match-window-size 4" in found["SGLang"] and "kv_cache_memory" in found["SGLang"]
    assert "--spec-ngram-simple-size-n 4" in found["llama.cpp"]
    found = printed(speculative_config={"method": "suffix"})
    assert "custom_class" in found["vLLM"] and "--no-deps headstart" in found["vLLM"]
    assert "not possible" in found["SGLang"] and "not possible" in found["llama.cpp"]
    assert "not possible" in printed(speculative_config={"method": "ngram", "verify": "match"})["vLLM"]
    assert "speculative" not in " ".join(printed().values())
    assert equivalents(build_config("org/target", {"quantization": "int8"})[0], Door())[0].startswith("# quantization: headstart quantises")


@pytest.mark.parametrize(
    ("shape", "parts"), [("capacity", ("--tensor-parallel-size 8", "--pipeline-parallel-size 2")), ("copies", ("-data-parallel-size 2",))]
)
def test_the_file_for_two_nodes(shape: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    """It is a shell script, and what it starts is understood."""
    command = tmp_path / "headstart"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m headstart "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}", "DRY_RUN": "1", "SHAPE": shape}
    done = subprocess.run(["bash", str(ROOT / "docs" / "two-nodes.sh"), "head"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert all(part in done.stdout for part in (*parts, "vllm serve", "ray start --head", '"draft_model"'))


def test_printing_needs_no_vllm_and_shows_no_key(capfd: Any) -> None:
    assert run(["serve", "org/target", "--draft", "ngram", "--print-command", "--api-key", "secret", "--max-queue", "3"]) == 0
    out = capfd.readouterr().out
    assert "secret" not in out and out.count('"$KEY"') == 3 and "# --max-queue: only headstart's own server has it" in out


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("", None),
        ('vllm:generation_tokens_total{a="0"} 300.0\n', "drafted nothing"),
        ('vllm:spec_decode_num_draft_tokens_total{a="0"} 6.0\nvllm:spec_decode_num_draft_tokens_total{a="1"} 1.0\n', "7 so far"),
    ],
)
def test_whether_drafts_are_made_is_looked_at(metrics: str, said: str | None, monkeypatch: Any) -> None:
    notes: list[str] = []
    watch = Watch("http://x", True, False, notes.append)
    monkeypatch.setattr(watch, "_get", lambda path: metrics)
    assert watch._undecided() is (said is None)
    assert len(notes) == (said is not None) and all(said in note for note in notes if said)


STUBBORN = """
import os, sys
from headstart.backends.vllm.serve import run_to_the_end
words = ["sh", "-c", "trap '' TERM; echo begun >&2; sleep 60 & wait; wait"]
asked, code = run_to_the_end(words, dict(os.environ), lambda words: print(words, file=sys.stderr, flush=True))
sys.exit(0 if asked and code == -9 else 1)
"""


def test_the_second_signal_ends_what_does_not_want_to() -> None:
    words, environment = [sys.executable, "-c", STUBBORN], {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    for word in ("begun", "a second signal"):
        wait_for(process, word)
        process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
