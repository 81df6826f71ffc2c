"""The Python API on real files: tiny random checkpoints, the real tokenizer, the real decoder in fp64."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from headstart import LLM, SamplingParams, SpeculativeConfig
from headstart.core import openmp
from headstart.core.errors import ConfigError, ModelError
from headstart.core.methods import drafter_of
from headstart.kernels import library
from tests.reference import letters_tokenizer
from tests.tiny import write_llama, write_tokenizer

VOCAB = 290


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target and drafts: another model, one with padded rows, one whose ids mean something else, a larger one."""
    root = tmp_path_factory.mktemp("models")
    out = {}
    size = len(write_tokenizer(root / "probe").get_vocab())
    for name, options, swap in (
        ("target", {"seed": 1}, None),
        ("draft", {"seed": 1, "layers": 1}, None),
        ("padded", {"seed": 2, "layers": 1, "pad_rows": 22}, None),
        ("permuted", {"seed": 3, "layers": 1}, (200, 201)),
        ("larger", {"seed": 4, "layers": 5}, None),
    ):
        folder = root / name
        write_llama(folder, **{"vocab": size, "max_len": 256, "scale": 0.15, "eos": 2, **options})
        write_tokenizer(folder, swap=swap)
        out[name] = str(folder)
    letters = letters_tokenizer()
    write_llama(root / "letters", vocab=len(letters), layers=1, max_len=256, scale=0.15)
    letters.save_pretrained(root / "letters")
    return {**out, "letters": str(root / "letters")}


def make(folders, **arguments):
    return LLM(folders["target"], dtype="float64", kv_cache_memory="64MiB", **arguments)


@pytest.fixture(scope="module")
def llm(folders):
    return make(
        folders, speculative_config={"method": "draft_model", "model": folders["draft"], "num_speculative_tokens": 3, "adaptive": False}
    )


GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def test_the_old_notebook_runs_unchanged(folders):
    """LLM(model=, speculative_model=, num_speculative_tokens=, gpu_memory_utilization=), as in vLLM before 0.8.5."""
    old = LLM(
        model=folders["target"], speculative_model=folders["draft"], num_speculative_tokens=5, gpu_memory_utilization=0.3, max_num_seqs=4
    )
    outputs = old.generate(["the cat sat", "def f"], SamplingParams(temperature=0.7, top_p=0.9, max_tokens=512))
    assert [o.prompt for o in outputs] == ["the cat sat", "def f"]
    assert all(o.outputs[0].finish_reason in ("stop", "length") for o in outputs)
    assert sum(o.metrics.speculative_decoding.num_draft_tokens for o in outputs) > 0
    assert any("speculative_config" in n for n in old.notes)


def test_prompt_forms_and_order(llm):
    ids = llm.get_tokenizer()("the cat").input_ids
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (3, 9, 5)]
    outputs = llm.generate(["the cat", {"prompt_token_ids": ids}, ids], params, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == [ids] * 3
    assert [o.prompt for o in outputs] == ["the cat", None, None]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [3, 9, 5]
    assert llm.generate("the cat", params[0])[0].outputs[0].token_ids == outputs[0].outputs[0].token_ids
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    "method", ["ngram", "draft", "padded", "larger", "target", "permuted", "letters", "quantised:int8", "quantised:int4", "several"]
)
@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_drafts_do_not_change_the_text(folders, method, rule):
    spec = {"method": "ngram", "prompt_lookup_min": 1} if method == "ngram" else {"model": folders.get(method)}
    if method == "several":
        spec = {"drafters": [{"method": "ngram", "prompt_lookup_min": 1}, folders["draft"], "quantised:int8", folders["letters"]]}
    elif ":" in method:
        spec = drafter_of(method)
    llm = make(folders, speculative_config=SpeculativeConfig(num_speculative_tokens=4, verify=rule, adaptive=False, **spec), block_size=4)
    prompts = ["the cat sat on the mat the cat sat", "def return def", "x"]
    variants = [GREEDY, SamplingParams(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True)]
    for params in variants[: 2 if rule == "match" else 1]:
        off = replace(params, num_speculative_tokens=0)
        drafted = llm.generate(prompts, params)
        assert [o.outputs[0].token_ids for o in drafted] == [o.outputs[0].token_ids for o in llm.generate(prompts, off)]
        stats = [o.metrics.speculative_decoding for o in drafted]
        assert sum(s.num_draft_tokens for s in stats) > 0
        if method.startswith("quantised"):
            assert sum(s.num_accepted_draft_tokens for s in stats) > 0
        if method == "target":
            assert all(s.draft_acceptance_rate == 1 for s in stats)
        size = len(llm.get_tokenizer().get_vocab())
        assert all(t < size for o in drafted for t in o.outputs[0].token_ids)


def test_statistics_have_vllms_fields(llm):
    out = llm.generate("the cat sat on the mat", GREEDY)[0]
    s = out.metrics.speculative_decoding
    assert sum(s.acceptance_histogram) == s.num_spec_steps and len(s.acceptance_histogram) == s.num_spec_tokens + 1 == 4
    assert s.mean_acceptance_length == 1 + s.num_accepted_draft_tokens / s.num_spec_steps
    per = out.outputs[0].spec_decode_metrics
    assert per.num_draft_tokens == s.num_draft_tokens and per.histogram == s.acceptance_histogram
    c = out.outputs[0]
    assert c.origins.count("draft") == s.num_accepted_draft_tokens
    assert len(c.token_ids) == c.origins.count("draft") + out.metrics.num_passes


def test_stream_grows_to_the_final_text_and_closing_it_frees_everything(llm):
    final = llm.generate("the cat sat", GREEDY)[0].outputs[0].text
    texts = [o.outputs[0].text for o in llm.stream("the cat sat", GREEDY)]
    assert texts[-1] == final and all(b.startswith(a) for a, b in pairwise(texts))
    stream = llm.stream("the cat sat", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    next(stream)
    stream.close()
    pool = llm.engine.pool
    pool.check()
    assert not llm.engine.has_work and pool.available == pool.num_blocks


def test_chat(llm):
    messages = [{"role": "user", "content": "the cat"}]
    out = llm.chat(messages, GREEDY)[0]
    assert out.prompt == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    both = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert [o.outputs[0].text for o in both] == [out.outputs[0].text] * 2
    assert list(llm.stream_chat(messages, GREEDY))[-1].outputs[0].text == out.outputs[0].text


def test_errors_are_words(folders, llm):
    for arguments, words in (
        ({"speculative_config": {"model": folders["permuted"], "use_heterogeneous_vocab": False}}, "id 200 is"),
        ({"speculative_config": {"model": "/no/such/draft"}}, "does not exist"),
        ({"speculative_config": {"method": "eagle3", "model": folders["draft"]}}, "is no head"),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_maxx": 3}}, "prompt_lookup_max"),
        ({"num_speculative_tokens": 5}, "nothing drafts"),
        ({"tensor_parallel_size": 2}, "one device"),
        ({"max_model_len": 10_000}, "own context of 256"),
        ({"temperature": 1}, "no argument 'temperature'"),
    ):
        with pytest.raises((ConfigError, ModelError), match=words):
            make(folders, **arguments)
    with pytest.raises(ConfigError, match="holds"):
        LLM(folders["target"], kv_cache_memory="20KB", max_model_len=200)
    with pytest.raises(ConfigError, match="empty"):
        llm.generate([""])
    with pytest.raises(ConfigError, match="the context 256"):
        llm.generate([{"prompt_token_ids": [5] * 256}])
    with pytest.raises(ConfigError, match="one per prompt"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(ConfigError, match="empty"):
        llm.chat([], GREEDY)
    with pytest.raises(ConfigError, match="token ids"):
        llm.generate([None])
    with pytest.raises(ConfigError):
        llm.generate([{"prompt_token_ids": "abc"}])
    assert not llm.engine.has_work, "a refused prompt left something behind"


def test_a_bad_prompt_in_a_list_leaves_nothing_behind(llm):
    with pytest.raises(ConfigError):
        llm.generate(["the cat", {"prompt_token_ids": [10**9]}], GREEDY)
    assert not llm.engine.has_work and not llm.engine.requests


def test_a_larger_draft_is_warned_about(folders):
    llm = make(folders, speculative_config={"model": folders["larger"]})
    assert any(n.startswith("warning") and "swapped" in n for n in llm.notes)


def test_short_kv_limits_the_context_and_says_so(folders):
    llm = LLM(folders["target"], dtype="float64", kv_cache_memory="100KB")
    assert any("context limited" in n for n in llm.notes)
    assert llm.engine.target.max_len < 256
    assert len(llm.generate("the cat", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0].outputs[0].token_ids) > 10


def test_importing_the_package_does_not_import_torch():
    code = "import sys, headstart; from headstart import SamplingParams, SpeculativeConfig; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_imported_first_is_told_of(folders):
    code = "{}from headstart import LLM; LLM({!r}, dtype='float32')"
    for first, told in (("import torch; ", True), ("", False)):
        environment = {k: v for k, v in os.environ.items() if k not in (openmp.VARIABLE, library.VARIABLE)}
        run = [sys.executable, "-c", code.format(first, folders["target"])]
        said = subprocess.run(run, check=True, capture_output=True, text=True, env=environment).stderr
        assert ("headstart: warning: torch was imported before headstart" in said) == (told and library.active().handle is not None)
