"""`headstart theory`: the table of the formulas, and one line for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]


def test_table_json_and_picture(headstart: Call, tmp_path: Path) -> None:
    code, out, err = headstart("theory", "--alpha", 0.8, "--cost", 0.05, "--k", "1..12")
    assert code == 0 and not err and "3.09x" in out and "best: k = 8, 3.09 times plain" in out and out.count("┃") == 12
    found = json.loads(headstart("theory", "-a", "0.9,0.5", "-k", "1,3", "--slope", 0.1, "--json")[1])
    assert [r["k"] for r in found["rows"]] == [1, 3] and found["rows"][1]["tokens"] == pytest.approx(1 + 0.9 + 0.45 + 0.225)
    assert found["rows"][1]["speedup"] == pytest.approx(2.575 / 1.3) and found["rows"][0]["break_even_alpha"] == pytest.approx(0.1)
    pytest.importorskip("matplotlib")
    assert headstart("theory", "--alpha", 0.3, "--cost", 0.4, "--plot", tmp_path / "x.png")[0] == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "no length pays" in headstart("theory", "--alpha", 0.3, "--cost", 0.4)[1]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "--alpha"),
        (("--alpha", "1.2"), "[0, 1]"),
        (("--alpha", "nan"), "[0, 1]"),
        (("--alpha", "0.5,"), "0.9,0.7,0.6"),
        (("--alpha", "0.5", "--cost", "-1"), "--cost"),
        (("--alpha", "0.5", "--k", "0"), "1 to 512"),
        (("--alpha", "0.5", "--k", "3..1"), "1 to 512"),
        (("--alpha", "0.5", "--k", "1..99999999999"), "1..12"),
        (("--alpha", "0.5", "--k", "x"), "1..12"),
        (("--alpha", "0.5", "--plot", "x.txt"), ".png"),
        (("--alpha", "0.5", "--tokens", "3"), "--tokens"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)
def test_mistakes(headstart: Call, argv: tuple[str, ...], words: str) -> None:
    code, out, err = headstart("theory", *argv)
    assert code == 2 and not out and err.startswith("headstart: error: ") and words in err and err.count("\n") == 1
