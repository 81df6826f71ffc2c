"""`headstart plan`: what a person and a program read, and one line for every mistake."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]


def test_llama_3_70b_on_one_h100(headstart: Call) -> None:
    code, out, err = headstart("plan", "Llama-3-70B", "--device", "h100", "--num-speculative-tokens", 5)
    assert code == 1 and not err
    for words in ("320 KiB", "1.64 MB", "141.1 GB", "DOES NOT FIT", "2 devices do", "--tensor-parallel-size 2", "8 of keys and values"):
        assert words in out
    assert "Llama-3.3-70B" in headstart("plan", "--list")[1]


def test_json_and_commands(headstart: Call) -> None:
    argv = (
        "plan",
        "Llama-3.1-8B-Instruct",
        "--draft",
        "Llama-3.2-1B-Instruct",
        "--device",
        "H100",
        "-k",
        3,
        "--alpha",
        "0.5,0.8",
        "--json",
    )
    code, out, err = headstart(*argv)
    found = json.loads(out)
    assert code == 0 and not err and found["fits"] and found["version"] == 1 and len(found["speed"]) == 2
    line = shlex.split(dict(found["commands"])["vLLM"])
    spec = json.loads(line[line.index("--speculative-config") + 1])
    assert spec == {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}
    assert line[2] == "meta-llama/Llama-3.1-8B-Instruct" and "headstart serve" in dict(found["commands"])["headstart"]


def test_quantised_weights_run_here_too(headstart: Call) -> None:
    found = json.loads(headstart("plan", "Llama-3.1-8B", "--device", "l4", "--dtype", "int8", "--json")[1])
    here, vllm = (dict(found["commands"])[n] for n in ("headstart", "vLLM"))
    assert found["fits"] and "--dtype bfloat16 --quantization int8" in here and vllm.startswith("name a checkpoint")
    fp8 = json.loads(headstart("plan", "Llama-3.1-8B", "--device", "l4", "--dtype", "fp8", "--json")[1])
    here, vllm = (dict(fp8["commands"])[n] for n in ("headstart", "vLLM"))
    assert here.startswith("not here") and "--quantization fp8" in vllm


def test_this_machine_and_a_local_checkpoint(headstart: Call, tiny: Path) -> None:
    code, out, _ = headstart("plan", tiny, "--draft", "ngram", "--alpha", 0.5)
    assert code == 0 and "FITS" in out and "measured" in out and "512 tokens" in out and "headstart serve" in out
    code, out, _ = headstart("plan", tiny, "--memory", "1MB", "--json")
    found = json.loads(out)
    assert code == 1 and found["devices_needed"] is None and "smaller dtype" in found["words"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "--list"),
        (("Llama-3-7B", "--device", "h100"), "Llama-3-70B"),
        (("Llama-3-8B", "--device", "h999"), "h100"),
        (("Llama-3-8B", "--device", "h100", "--draft", "Qwen3-0.6B"), "different strings"),
        (("Llama-3-8B", "--device", "h100", "--dtype", "fp4"), "fp8"),
        (("Llama-3-8B", "--device", "h100", "--alpha", "2"), "--alpha"),
        (("Llama-3-8B", "--device", "h100", "--alpha", "x"), "0.6,0.8"),
        (("Llama-3-8B", "--device", "h100", "--memory", "much"), "2GiB"),
        (("Llama-3-8B", "--device", "h100", "--context", "0"), "--context"),
        (("Llama-3-8B", "--device", "h100", "-k", "0"), "--num-speculative-tokens"),
        (("Llama-3-8B", "--device", "h100", "--memory-utilization", "1.5"), "--memory-utilization"),
        (("Llama-3-8B", "--device", "h100", "--analysis", "none.json"), "cannot be read"),
        (("Llama-3-8B", "--device", "h100", "--analysis", "none.json", "--alpha", "0.5"), "leave one"),
        (("Llama-3-8B", "--devise", "h100"), "--device"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)
def test_mistakes(headstart: Call, argv: tuple[str, ...], words: str) -> None:
    code, out, err = headstart("plan", *argv)
    assert code == 2 and not out and err.startswith("headstart: error: ") and words in err and err.count("\n") == 1, err
