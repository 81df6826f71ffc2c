"""The scripts in benchmarks/: a grown model computes what it was grown from, and a table of engines says what it should."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from headstart.models.gguf import GGUFFile
from headstart.runtime.checkpoint import open_checkpoint
from tests import tiny

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_grown_model_computes_the_same_until_it_gets_noise(script: Any, noise: float) -> None:
    small = tiny.llama_model(layers=2)
    tensors = {n: p.detach() for n, p in small.named_parameters()}
    grown = script("grow").grow(tensors, 2, 5, noise)
    big = tiny.llama_model(layers=5)
    missing, unexpected = big.load_state_dict(grown, strict=False)
    assert not unexpected and all("lm_head" in name for name in missing)
    tokens = [3, 1, 4, 1, 5]
    same = torch.equal(tiny.logits_of(big, tokens), tiny.logits_of(small, tokens))
    assert same == (noise == 0)
    added = [n for n, t in grown.items() if n.endswith("q_proj.weight") and not bool(t.any())]
    assert not added, "every added layer has work to do"


def test_a_checkpoint_that_other_engines_load(script: Any, tmp_path: Path) -> None:
    model = tiny.llama_model(vocab=len(tiny.tokenizer()), dtype=torch.float32)
    tensors = {n: p.detach() for n, p in model.named_parameters()}
    config = {**model.config.to_dict(), "eos_token_id": [2], "headstart_grown": "grown from a seed"}
    script("checkpoints").write(tmp_path, config, tensors, tiny.tokenizer())
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoTokenizer.from_pretrained(tmp_path).chat_template
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(tiny.logits_of(theirs, [1, 2, 3]), tiny.logits_of(model, [1, 2, 3]))
    ours = open_checkpoint(str(tmp_path))
    assert ours.eos_ids == [2] and ours.notes == [f"{tmp_path.name}: grown from a seed"]


@pytest.mark.parametrize(("dtype", "called"), [("float32", "F32"), ("bfloat16", "BF16, F32")])
def test_unquantised_gguf_holds_the_same_numbers(script: Any, tmp_path: Path, dtype: str, called: str) -> None:
    tiny.write_gguf(tmp_path / "q.gguf", tiny.llama_model(vocab=len(tiny.tokenizer()), dtype=torch.float32), "Q8_0")
    made = script("checkpoints").unquantised_gguf(tmp_path / "q.gguf", tmp_path / "f.gguf", dtype)
    before, after = (GGUFFile(Path(p)) for p in (tmp_path / "q.gguf", made))
    assert before.names() == after.names() and before.config() == after.config() and before.eos_ids() == after.eos_ids()
    rounded = lambda t: t.to(getattr(torch, dtype)).float() if t.ndim == 2 else t  # noqa: E731
    assert all(torch.equal(rounded(before.tensor(n)), after.tensor(n).float()) for n in before.names())
    assert after.quantisation == called and before.tokenizer().get_vocab() == after.tokenizer().get_vocab()


def test_table_of_engines(script: Any) -> None:
    peers = script("peers")
    nothing: Any = None
    arms = [
        peers.Arm("headstart", "plain", nothing, "1", [10.0, 20.0], [20.0, 40.0], [[1], [2]]),
        peers.Arm("headstart", "lookup", nothing, "1", [20.0, 60.0], [20.0, 60.0], [[1], [2]]),
        peers.Arm("other", "plain", nothing, "2", [5.0, 5.0], [5.0, 10.0], [[1], [3]]),
        peers.Arm("other", "lookup", nothing, "2", [10.0, 5.0], [0.0, 0.0], [[1], [4]]),
    ]
    rows = [line.split() for line in peers.table(arms)]
    assert rows[2] == ["headstart", "prompt", "lookup", "40.0", "2.50", "2", "of", "2", "2.50", "2", "of", "2", "40.0", "1.25"]
    assert rows[4] == ["other", "prompt", "lookup", "7.5", "1.50", "1", "of", "2", "0.62", "1", "of", "2", "0.0", "0.00"]


def test_decoding_leaves_out_the_time_to_the_first_token(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = script("peers")
    nothing: Any = None
    arm = peers.Arm("headstart", "plain", nothing)
    answers = {1: ([5], 2.0), 4: ([5, 6, 7, 0], 3.0)}
    monkeypatch.setattr(arm, "ask", lambda ids, tokens: answers[tokens])
    arm.measure([1, 2], 4, eos=0)
    assert (arm.texts, arm.speeds, arm.decoding) == ([[5, 6, 7]], [1.0], [2.0])


@pytest.mark.parametrize("name", ["grow", "peers", "identical"])
def test_help(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as e:
        script(name).main()
    assert e.value.code == 0 and "usage" in capsys.readouterr().out


def test_replay_with_the_engines_choice(script: Any) -> None:
    """What repeats comes sooner, by no more than the drafts of a step; what does not takes what plain decoding takes."""
    lookup, rng = script("lookup"), random.Random(0)
    fresh = [rng.randrange(10**6) for _ in range(600)]
    rows = [
        {"category": "copied", "prompt": fresh[:300], "output": fresh[100:300]},
        {"category": "new", "prompt": fresh[:300], "output": fresh[300:]},
    ]
    got = lookup.paced([lookup.Member("suffix", lookup.SuffixDrafter(4.0, 0.1), 24)], rows)
    assert got["new"] == 1.0 and 2.5 < got["copied"] < 25 / lookup.CURVE[16]
    assert got["all"] == pytest.approx(500 / (200 / got["copied"] + 300))
