"""The width curve of a loaded model: measured once, kept, and never in the way."""

from __future__ import annotations

import json

import pytest

from headstart import LLM, SamplingParams
from headstart.runtime import width
from tests.doubles import EchoModel
from tests.tiny import write_llama, write_tokenizer

DRAFTS = {"method": "quantised", "quantization": "int8", "num_speculative_tokens": 3}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder of caches, and every model large enough to be worth measuring."""
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(width, "_SMALL", 0)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("model")
    write_llama(root, vocab=len(write_tokenizer(root).get_vocab()), max_len=256, scale=0.15, seed=1)
    return str(root)


def load(folder, **arguments):
    return LLM(folder, dtype="float32", kv_cache_memory="8MiB", **arguments)


def test_measured_once_and_kept(folder, cache, monkeypatch):
    target = load(folder).engine.target
    assert not cache.exists(), "nothing drafts, so nothing was measured"
    curve = width.known_curve(target, 16)
    assert tuple(curve) == width.WIDTHS and min(curve.values()) > 0
    passes = []
    monkeypatch.setattr(target, "forward", lambda feeds: passes.append(feeds))
    assert width.known_curve(target, 16) == curve and not passes
    wider = {**curve, 32: 1.0}
    width.keep(target, wider)
    assert width.known_curve(target, 16) == wider and len(list(cache.iterdir())) == 1


def test_another_model_or_machine_is_measured_anew(folder, cache, monkeypatch):
    target = load(folder).engine.target
    width.keep(target, dict.fromkeys(width.WIDTHS, 7.0))
    assert width.known_curve(load(folder, quantization="int8").engine.target, 16)[1] < 7
    assert width.known_curve(target, 16)[1] == 7
    monkeypatch.setattr(width, "device_name", lambda device: "another processor")
    assert width.known_curve(target, 16)[1] < 7 and len(list(cache.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "\0\xff",
        lambda text: json.dumps({"of": "something else", "seconds": json.loads(text)["seconds"]}),
        lambda text: json.dumps({**json.loads(text), "seconds": [1, 2]}),
        *(
            lambda text, wrong=wrong: json.dumps({**json.loads(text), "seconds": {**json.loads(text)["seconds"], **wrong}})
            for wrong in ({"0": 1.0}, {"x": 1.0}, {"2": float("nan")}, {"2": float("inf")}, {"2": -1.0}, {"2": None})
        ),
    ],
)
def test_a_damaged_file_is_measured_and_written_anew(folder, cache, damage):
    target = load(folder).engine.target
    width.keep(target, dict.fromkeys(width.WIDTHS, 7.0))
    (file,) = cache.iterdir()
    file.write_text(damage(file.read_text()), encoding="latin-1")
    curve = width.known_curve(target, 16)
    assert tuple(curve) == width.WIDTHS and curve[2] < 7 and width.known_curve(target, 16) == curve


def test_where_nothing_can_be_written(folder, cache):
    cache.write_text("not a folder")
    assert tuple(width.known_curve(load(folder).engine.target, 16)) == width.WIDTHS


def test_small_models_doubles_and_tight_pools(folder, cache, monkeypatch):
    target = load(folder).engine.target
    assert width.measure(target, 1, width.WIDTHS) == {}, "one block has no room for it"
    assert tuple(width.measure(target, 16, width.WIDTHS, seconds=0.0)) == (1,), "whatever was not reached is left out"
    monkeypatch.setattr(width, "_SMALL", 1 << 30)
    width.keep(target, {1: 1.0})
    assert width.known_curve(target, 16) == {} and not cache.exists()
    monkeypatch.undo()
    assert width.known_curve(width.Runner(EchoModel(), 16, 4, 8, 99), 16) == {}


def test_the_pace_starts_from_it_and_the_text_does_not(folder, cache, monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    monkeypatch.setattr(width, "_SMALL", 1 << 30)
    unmeasured = load(folder, speculative_config=DRAFTS)
    assert not unmeasured.engine.drafter.pace.curve.known
    wanted = unmeasured.generate([[1, 2, 3]], params)[0].outputs[0].token_ids
    monkeypatch.setattr(width, "_SMALL", 0)
    llm = load(folder, speculative_config=DRAFTS)
    pace = llm.engine.drafter.pace
    assert pace.curve.known == len(width.WIDTHS) and pace.draft_steps["quantised"] > 0
    assert len(list(cache.iterdir())) == 2, "the target's, and the draft's"
    out = llm.generate([[1, 2, 3]], params)[0]
    assert out.outputs[0].token_ids == wanted and out.metrics.speculative_decoding.num_draft_tokens
    monkeypatch.setattr(width, "measure", lambda *a, **k: pytest.fail("it was kept"))
    assert load(folder, speculative_config=DRAFTS).engine.drafter.pace.curve.known == len(width.WIDTHS)
    constant = load(folder, speculative_config={**DRAFTS, "adaptive": False})
    assert not constant.engine.drafter.pace.curve.known, "a constant length needs no times"
