"""The worker and its engine, with a stand-in for vLLM: the real pipes, the real protocol, and everything that can go wrong on them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headstart import LLM, SamplingParams
from headstart.backends.vllm import engine as engine_module
from headstart.backends.vllm import installation
from headstart.core.errors import ConfigError, EngineError
from headstart.core.outputs import Logprob

Fake = Callable[..., None]
INSPECT = installation._inspect  # before a fixture replaces it


def load(folders: dict[str, str], **arguments: Any) -> LLM:
    return LLM(folders["target"], backend="vllm", **{"max_model_len": 64, "dtype": "float32", **arguments})


def drafting(folders: dict[str, str]) -> LLM:
    return load(folders, speculative_config={"method": "ngram", "num_speculative_tokens": 3})


@pytest.fixture(scope="module")
def llm(folders: dict[str, str], stand_in: Fake) -> Iterator[LLM]:
    stand_in()
    made = drafting(folders)
    yield made
    made.shutdown()


def group_of(llm: LLM) -> int:
    worker: Any = llm.engine
    return int(worker.worker.process.pid)


def gone(group: int) -> bool:
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_outputs_come_back_as_ours(llm: LLM) -> None:
    """Order, text, log probabilities, statistics; what vLLM does not tell is empty."""
    assert llm.speculation and any("k=3 in every step" in line and "traces: none" in line for line in llm.notes)
    params = [SamplingParams(max_tokens=6, logprobs=0), SamplingParams(max_tokens=3, n=2)]
    one, two = llm.generate([{"prompt_token_ids": [5, 6]}, [9]], params, use_tqdm=False)
    first = one.outputs[0]
    assert (first.token_ids, first.text, first.finish_reason) == ([7, 8, 9, 10, 11, 12], " 7 8 9 10 11 12", "length")
    assert first.logprobs == [{t: Logprob(-0.5, 1, f" {t}")} for t in first.token_ids] and first.cumulative_logprob == -3.0
    assert (first.origins, first.token_texts) == ([], [])
    stats = one.metrics.speculative_decoding
    assert (stats.per_step_drafted, stats.per_step_accepted, one.metrics.num_passes) == ([2, 2, 2], [1, 1, 1], 4)
    assert first.spec_decode_metrics is not None and first.spec_decode_metrics.histogram == [0, 3, 0, 0]
    assert [c.token_ids for c in two.outputs] == [[10, 11, 12]] * 2 and one.num_cached_tokens == 1 and one.finished
    assert two.metrics.speculative_decoding.num_draft_tokens == 4
    m = one.metrics
    assert m.first_token_time is not None and m.finished_time is not None and m.arrival_time <= m.first_token_time <= m.finished_time


def test_streams_and_aborts(llm: LLM) -> None:
    texts = [o.outputs[0].text for o in llm.stream([5], SamplingParams(max_tokens=5))]
    assert texts == [" 6", " 6 7 8", " 6 7 8 9 10"]
    growing = llm.stream([5], SamplingParams(max_tokens=50))
    next(growing)
    growing.close()  # type: ignore[attr-defined]
    assert not llm.engine.requests
    assert llm.generate([5], SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids == [6, 7]


@pytest.mark.parametrize(
    ("prompt", "params", "word"),
    [
        ([], {}, "empty"),
        ([288], {}, "vocabulary"),
        ([True], {}, "vocabulary"),
        ([1] * 64, {}, "context"),
        ([5], {"min_p": 0.5}, "min_p"),
        ([5], {"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ([200], {}, "not wanted"),
    ],
)
def test_bad_requests_leave_nothing_behind(llm: LLM, prompt: list[int], params: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        llm.generate(
            [{"prompt_token_ids": [5]}, *[{"prompt_token_ids": prompt}] * 2], SamplingParams(max_tokens=4, **params), use_tqdm=False
        )
    assert not llm.engine.requests
    assert llm.generate([5], SamplingParams(max_tokens=1), use_tqdm=False)[0].finished


def test_a_long_prompt_is_cut_where_that_is_asked_for(llm: LLM) -> None:
    for keep, left in ((2, [8, 9]), (-1, [8, 9])):
        out = llm.generate([*range(1, 10)], SamplingParams(max_tokens=62, truncate_prompt_tokens=keep), use_tqdm=False)[0]
        assert out.prompt_token_ids == left


@pytest.mark.parametrize(
    ("token", "words"),
    [(201, ("engine failed", "engine is broken")), (202, ("signal 9", "out of luck")), (203, ("said nothing", "was ended"))],
)
def test_a_worker_that_fails_is_an_error_and_not_a_hang(
    folders: dict[str, str], fake: Fake, token: int, words: tuple[str, ...], monkeypatch: Any
) -> None:
    """It raises, is killed, or hangs: an error with its last words, nothing left running, and an error again for who asks again."""
    llm = drafting(folders)
    monkeypatch.setattr(engine_module, "_STEP_SECONDS", 2.0)
    group = group_of(llm)
    began = time.monotonic()
    with pytest.raises(EngineError) as error:
        llm.generate([[5], [token]], SamplingParams(max_tokens=30), use_tqdm=False)
    assert time.monotonic() - began < 30 and all(word in str(error.value) for word in words)
    assert gone(group)
    with pytest.raises(EngineError):
        llm.generate([5], SamplingParams(max_tokens=2), use_tqdm=False)


@pytest.mark.parametrize("how", ["shutdown", "forgotten"])
def test_nothing_stays(folders: dict[str, str], fake: Fake, how: str) -> None:
    made = load(folders)
    group, path = group_of(made), Path(made.engine.worker.process.args[0])  # type: ignore[attr-defined]
    assert path.exists()
    if how == "shutdown":
        made.shutdown()
        made.shutdown()
        with pytest.raises(EngineError, match="shut down"):
            made.generate([5], use_tqdm=False)
    else:
        del made
        import gc

        gc.collect()
    assert gone(group)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend_options": {"no_such": 1}}, ConfigError, ("0.32.0", "no_such")),
        ({"backend_options": {"additional_config": {1, 2}}}, ConfigError, ("backend_options", "set")),
        ({"quantization": "broken"}, ConfigError, ("this cannot be loaded",)),
        ({"quantization": "fatal"}, EngineError, ("code 3", "the disk is full")),
        ({"speculative_config": {"method": "suffix", "arctic": True}}, ConfigError, ("arctic-inference",)),
    ],
)
def test_what_cannot_be_started(folders: dict[str, str], fake: Fake, arguments: dict[str, Any], error: Any, words: Any) -> None:
    with pytest.raises(error) as raised:
        load(folders, **arguments)
    assert all(word in str(raised.value) for word in words) and "\n" not in str(raised.value)


def test_pairs_that_vllm_does_not_take(folders: dict[str, str], fake: Fake) -> None:
    """Before anything is started; the native engine takes the padded one."""
    for name, words in (("padded", "288 rows, the draft 304"), ("permuted", "id 200")):
        with pytest.raises(ConfigError, match=words):
            load(folders, speculative_config={"model": folders[name]})
    load(folders, speculative_config={"model": folders["draft"]}).shutdown()


def test_speculation_that_does_not_happen_is_said_once(folders: dict[str, str], fake: Fake, caplog: Any) -> None:
    made = load(folders, speculative_config={"model": folders["draft"]})
    with caplog.at_level(logging.WARNING, "headstart"):
        made.generate([[204], [204]], SamplingParams(max_tokens=20), use_tqdm=False)
        made.generate([[204]], SamplingParams(max_tokens=20), use_tqdm=False)
    made.shutdown()
    assert [r.message for r in caplog.records] == [
        "vLLM has drafted nothing in 19 tokens with method='draft_model': is its context too short?"
    ]


def test_which_vllm_is_found(fake: Fake) -> None:
    assert installation.find().cpu and "0.32.0" in installation.describe()[0]
    fake(vllm="0.11.2")
    assert "too old" in installation.describe()[0]
    fake(extra=("torchvision",))
    assert "pip uninstall torchvision" in installation.describe()[0]
    fake(torch="2.9+cu129", vllm="0.33.0", ray=True)
    assert "GPUs" in installation.describe()[0] and "several nodes" in installation.describe()[2]


def test_where_there_is_none(monkeypatch: Any) -> None:
    monkeypatch.setattr(installation, "_inspect", INSPECT)
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    monkeypatch.setattr(installation.sys, "executable", "/no/such/python")
    for python in ("/no/such/python", None):
        assert "not a Python" in installation.describe(python)[0] and "make vllm" in installation.describe(python)[0]
