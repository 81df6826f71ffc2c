"""With the real vLLM, on the CPU: `make test-vllm`. Three starts: lookup, a draft model, and its server with our lookup inside.

The same checkpoint runs in both engines in float32; texts are greedy, so that they can be compared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headstart import LLM, RequestOutput, SamplingParams
from headstart.backends.vllm.installation import VARIABLE, find
from headstart.core.errors import ConfigError, EngineError

PYTHON = os.environ.get(VARIABLE)
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason=f"{VARIABLE} names no Python with vLLM: make test-vllm"),
]

PROMPTS = ["the cat sat on the mat the cat sat on the mat the cat", "def return def return def", "1 2 3 4 1 2 3 4 1 2 3"]
SHAPE = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "kv_cache_memory": "256MiB"}
# Nothing is compiled, and the worker starts no further process: half the time to start.
QUICK = {"TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def greedy(**options: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def native(folders: dict[str, str]) -> LLM:
    return LLM(folders["target"], **SHAPE)  # type: ignore[arg-type]


def open_vllm(folders: dict[str, str], **speculative: object) -> LLM:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setenv(name, value)
        return LLM(folders["target"], backend="vllm", enforce_eager=True, speculative_config=speculative, **SHAPE)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lookup(folders: dict[str, str]) -> Iterator[LLM]:
    made = open_vllm(folders, method="ngram", num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def paired(folders: dict[str, str]) -> Iterator[LLM]:
    made = open_vllm(folders, method="draft_model", model=folders["draft"], num_speculative_tokens=3)
    yield made
    made.shutdown()


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [c.token_ids for o in outputs for c in o.outputs]


def texts(outputs: list[RequestOutput]) -> list[str]:
    """Without an incomplete character at the end: ours is shown as U+FFFD, vLLM leaves it out."""
    return [c.text.rstrip("\ufffd") for o in outputs for c in o.outputs]


def drafted(outputs: list[RequestOutput]) -> tuple[int, int]:
    stats = [o.metrics.speculative_decoding for o in outputs]
    return sum(s.num_draft_tokens for s in stats), sum(s.num_accepted_draft_tokens for s in stats)


def test_what_is_found() -> None:
    assert find().python == PYTHON and find().cpu


def test_greedy_text_is_the_same_in_both_engines(native: LLM, lookup: LLM) -> None:
    here, there = native.generate(PROMPTS, greedy()), lookup.generate(PROMPTS, greedy())
    assert ids(here) == ids(there) and texts(here) == texts(there)
    made, stood = drafted(there)
    assert 0 <= stood < made
    assert all(o.finished and o.outputs[0].finish_reason == "length" for o in there)


# Options that shape the text, each with drafts there and without them here.
OPTIONS: dict[str, dict[str, object]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.5},
    "allowed": {"allowed_token_ids": [20, 21, 30, 31, 40]},
    "stop ids": {"stop_token_ids": list(range(100, 200)), "ignore_eos": False},
    "min tokens": {"min_tokens": 6, "stop_token_ids": list(range(100, 200)), "ignore_eos": False},
    "choice": {"structured_outputs": {"choice": ["the cat", "the mat"]}, "ignore_eos": False},
    "regex": {"structured_outputs": {"regex": "[ab]{3,5}"}, "ignore_eos": False},
}


def test_options_mean_the_same_in_both_engines(native: LLM, lookup: LLM) -> None:
    """All of them in one batch; bad words and stop strings are made from what the plain text holds."""
    text = native.generate([PROMPTS[0]], greedy())[0].outputs[0]
    word = re.findall(r"[a-z]{2,}", text.text)
    rows = {**OPTIONS, "stop": {"stop": [text.text[4:6]]}, **({"bad words": {"bad_words": [word[0]]}} if word else {})}
    params = [greedy(**row) for row in rows.values()]
    here, there = (llm.generate([PROMPTS[0]] * len(rows), params) for llm in (native, lookup))
    parted = [name for name, a, b in zip(rows, here, there, strict=True) if ids([a]) != ids([b])]
    assert parted == []
    assert [o.outputs[0].finish_reason for o in here] == [o.outputs[0].finish_reason for o in there]
    assert texts(here) == texts(there)


def test_log_probabilities_are_those_of_the_target(native: LLM, lookup: LLM) -> None:
    here, there = (llm.generate(PROMPTS, greedy(logprobs=2, prompt_logprobs=1)) for llm in (native, lookup))
    for a, b in zip(here, there, strict=True):
        for mine, theirs in zip(a.outputs[0].logprobs or (), b.outputs[0].logprobs or (), strict=True):
            assert mine.keys() == theirs.keys()
            assert all(abs(mine[t].logprob - theirs[t].logprob) < 1e-3 and mine[t].rank == theirs[t].rank for t in mine)
        assert a.outputs[0].cumulative_logprob == pytest.approx(b.outputs[0].cumulative_logprob, abs=1e-2)
        assert len(a.prompt_logprobs or ()) == len(b.prompt_logprobs or ())


@pytest.mark.parametrize("engine", ["lookup", "paired"])
def test_drafted_rows_are_sampled_as_asked_for(native: LLM, engine: str, request: pytest.FixtureRequest) -> None:
    """Where only one token is left, sampling is greedy: temperature, top_k and top_p reach every row of a draft (mend.py)."""
    here = native.generate(PROMPTS, greedy())
    for options in ({"temperature": 0.9, "top_k": 1}, {"temperature": 1.3, "top_p": 1e-6}):
        there = request.getfixturevalue(engine).generate(PROMPTS, greedy(**options))
        assert ids(here) == ids(there) and drafted(there)[0] > 0


def test_sampling_is_repeatable_and_streams_grow(lookup: LLM) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=11, max_tokens=16, ignore_eos=True)
    again, first = (ids(lookup.generate([PROMPTS[0]], params)) for _ in range(2))
    assert again == first and ids(lookup.generate([PROMPTS[0]], SamplingParams(temperature=0.9, seed=12, ignore_eos=True))) != first
    grown = [o.outputs[0].text for o in lookup.stream(PROMPTS[0], greedy())]
    assert len(grown) > 1 and all(b.startswith(a) for a, b in pairwise(grown))
    several = lookup.generate([PROMPTS[0]], SamplingParams(temperature=1.0, n=3, max_tokens=8, ignore_eos=True))[0].outputs
    assert [len(c.token_ids) for c in several] == [8, 8, 8] and len({tuple(c.token_ids) for c in several}) > 1


@pytest.mark.parametrize(
    ("options", "word"),
    [({"min_p": 0.1}, "min_p"), ({"logit_bias": {5: 1.0}}, "logit_bias"), ({"n": 2}, "n above 1"), ({"logprobs": 99}, "20")],
)
def test_what_is_refused_leaves_the_engine_well(lookup: LLM, options: dict[str, object], word: str) -> None:
    """By us, or where we do not know better by vLLM itself."""
    with pytest.raises(ConfigError, match=word):
        lookup.generate(PROMPTS, greedy(**options))
    assert lookup.generate(PROMPTS[:1], greedy())[0].finished


def test_a_draft_model_drafts_and_the_text_stays(native: LLM, paired: LLM) -> None:
    here, there = native.generate(PROMPTS, greedy()), paired.generate(PROMPTS, greedy())
    assert ids(here) == ids(there)
    made, stood = drafted(there)
    assert 0 < stood < made
    sampled = paired.generate(PROMPTS, SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True))
    made, stood = drafted(sampled)
    assert 0 < stood < made and all(len(o.outputs[0].token_ids) == 24 for o in sampled)


def test_a_killed_worker_is_an_error(paired: LLM) -> None:
    """The last of this engine."""
    growing = paired.stream(PROMPTS[0], greedy(max_tokens=100))
    next(growing)
    os.kill(paired.engine.worker.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="signal 9"):
        for _ in growing:
            pass


def test_the_server_with_our_lookup_inside(folders: dict[str, str], native: LLM) -> None:
    """`headstart serve --backend vllm --draft suffix`, asked by the openai package, ended by a signal."""
    from openai import OpenAI

    words = [sys.executable, "-m", "headstart", "serve", folders["target"], "--backend", "vllm", "--draft", "suffix", "-k", "4"]
    words += ["--port", "0", "--dtype", "float32", "--max-model-len", "128", "--kv-cache-memory", "256MiB", "--served-model-name", "tiny"]
    words += ["--backend-option", "enforce_eager=true"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": root, "VLLM_LOGGING_LEVEL": "WARNING"}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if line.startswith("API: "):
            break
    assert log[-1].startswith("API: "), "".join(log[-30:])
    url = log[-1].split()[1]
    try:
        client = OpenAI(base_url=url, api_key="none", max_retries=0)
        assert [m.id for m in client.models.list()] == ["tiny"]
        body = {"ignore_eos": True}
        answer = client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=24, temperature=0, extra_body=body)
        assert answer.choices[0].text.rstrip("\ufffd") == texts(native.generate(PROMPTS[:1], greedy()))[0]
        told = json.loads(answer.model_dump_json())
        assert told["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 0
