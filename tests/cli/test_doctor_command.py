"""`headstart doctor`: what serves here, what a pass costs, and which vLLM there is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.kernels.library import active

Call = Callable[..., tuple[int, str, str]]


def test_doctor_says_what_serves(headstart: Call, tiny: Path) -> None:
    code, out, _ = headstart("doctor", "--model", tiny, "--json")
    found = json.loads(out)
    assert code == 0 and found["kernels"] == active().path and found["native_pass"] == (active().path != "torch")
    assert found["read_gb_per_s"] > 0 and found["weight_bytes"] > 0
    curve = {int(rows): ms for rows, ms in found["width_curve_ms"].items()}
    assert min(curve) == 1 and len(curve) > 3 and all(ms > 0 for ms in curve.values())
    text = headstart("doctor", "--model", tiny)[1]
    assert f"kernels      {active().path}: {active().why}" in text and "1 rows" in text


@pytest.mark.parametrize(("python", "words"), [(sys.executable, "make vllm"), ("/no/such/python", "is not a Python")])
def test_doctor_says_which_vllm_there_is(headstart: Call, python: str, words: str) -> None:
    code, out, _ = headstart("doctor", "--vllm-python", python)
    assert code == 0 and words in out


def test_doctor_refuses_what_it_cannot_read(headstart: Call, tmp_path: Path) -> None:
    code, _, err = headstart("doctor", "--model", tmp_path / "nothing")
    assert code and "does not exist" in err and "Traceback" not in err
