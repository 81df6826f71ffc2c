"""The decoder against transformers in fp64: shapes, biases, tied heads, rope; and the same logits however the text is fed."""

from __future__ import annotations

import random

import pytest
import torch

from headstart.core.errors import ModelError
from headstart.models.llama import read_config
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Runner
from tests import tiny

CPU = torch.device("cpu")
TEXT = random.Random(1).choices(range(97), k=41)
BLOCK, TABLE = 4, [7, 3, 4, 5, 11, 0, 9, 8, 2, 1, 6, 10]
SHAPES = {
    "MHA": {"heads": 4, "kv_heads": 4},
    "GQA": {"heads": 4, "kv_heads": 2},
    "MQA": {"heads": 4, "kv_heads": 1},
    "wide heads": {"heads": 4, "kv_heads": 2, "head_dim": 12},
    "narrow heads": {"heads": 2, "kv_heads": 2, "head_dim": 6},
    "untied": {"tied": False},
    "bias": {"bias": True},
    "untied bias": {"tied": False, "bias": True, "kv_heads": 1, "layers": 3},
    "llama3": {"rope": tiny.LLAMA3_ROPE},
    "linear": {"rope": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    "all": {"rope": tiny.LLAMA3_ROPE, "tied": False, "bias": True, "hidden": 48, "heads": 6, "kv_heads": 3, "head_dim": 10},
}


def exact(model):
    """transformers' model without its own detours through fp32: attention by torch, and norms in the model's dtype."""
    model.set_attn_implementation("sdpa")
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            eps, weight = module.variance_epsilon, module.weight
            module.forward = lambda x, eps=eps, weight=weight: weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return model


def load(folder, dtype=torch.float64):
    return load_model(open_checkpoint(str(folder)), dtype, CPU)


def runner(model) -> Runner:
    return Runner(model, len(TABLE), BLOCK, model.config.vocab_size, 128)


def feed(run: Runner, *counts: int) -> torch.Tensor:
    """Logits after every token of TEXT, fed in passes of so many tokens."""
    out, start = [], 0
    for n in counts:
        out += run.forward([Feed(TEXT[start : start + n], start, TABLE, n)])
        start += n
    assert start == len(TEXT)
    return torch.cat(out)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(tmp_path, shape):
    theirs = tiny.write_llama(tmp_path, **SHAPES[shape])
    plain = tiny.logits_of(theirs, TEXT)
    got = feed(runner(load(tmp_path)), len(TEXT))
    assert got.dtype is torch.float64 and got.std() > 0.5
    torch.testing.assert_close(got, plain, rtol=1e-3, atol=1e-4)  # transformers as it is: norms and softmax in fp32
    torch.testing.assert_close(got, tiny.logits_of(exact(theirs), TEXT), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", ["GQA", "all"])
def test_one_pass_chunks_and_single_tokens_are_equal(tmp_path, shape):
    tiny.write_llama(tmp_path, **SHAPES[shape])
    model = load(tmp_path)
    once = feed(runner(model), len(TEXT))
    for counts in ([1] * 41, [5, 3, 33], [16, 16, 9], [40, 1], [5, 3, *[1] * 33], [3, 2, 3, 4, 1, 1, 1, 26]):
        torch.testing.assert_close(feed(runner(model), *counts), once, rtol=1e-10, atol=1e-11)


def test_rejected_drafts_leave_nothing_behind(tmp_path):
    """Three wrong tokens are fed behind eight, then the right ones over them: the logits of a run that never saw them."""
    tiny.write_llama(tmp_path)
    model = load(tmp_path)
    once = feed(runner(model), len(TEXT))
    run = runner(model)
    run.forward([Feed(TEXT[:8], 0, TABLE, 0)])
    run.forward([Feed([1, 2, 3], 8, TABLE, 3)])
    got = run.forward([Feed(TEXT[8:10], 8, TABLE, 2)])[0]
    torch.testing.assert_close(got, once[8:10], rtol=1e-10, atol=1e-11)
    got = run.forward([Feed(TEXT[10:], 10, TABLE, 31)])[0]
    torch.testing.assert_close(got, once[10:], rtol=1e-10, atol=1e-11)


def test_a_batch_of_several_texts(tmp_path):
    """Prefill, decoding and verification rows of three texts in one pass, each equal to transformers on its own."""
    theirs = exact(tiny.write_llama(tmp_path, **SHAPES["GQA"]))
    run = runner(load(tmp_path))
    texts, tables = [TEXT[:9], TEXT[10:23], TEXT[25:27]], [[5, 2, 9], [0, 1, 3, 4], [8]]
    run.forward([Feed(texts[0][:8], 0, tables[0], 0), Feed(texts[1][:10], 0, tables[1], 1)])
    got = run.forward([Feed(texts[0][8:], 8, tables[0], 1), Feed(texts[1][10:], 10, tables[1], 3), Feed(texts[2], 0, tables[2], 1)])
    for text, logits in zip(texts, got, strict=True):
        torch.testing.assert_close(logits, tiny.logits_of(theirs, text)[-len(logits) :], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_other_dtypes(tmp_path, dtype, tolerance):
    """From a checkpoint in fp64; logits come back in fp32."""
    theirs = tiny.write_llama(tmp_path, scale=0.1)
    got = feed(runner(load(tmp_path, dtype)), 20, 1, 4, 16)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), tiny.logits_of(theirs, TEXT), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_width_of_a_pass_changes_rounding_only(tmp_path, dtype, tolerance):
    """Decoding one by one, or verifying 2 to 16 tokens at once: the same argmax, and logits equal to rounding."""
    tiny.write_llama(tmp_path, dtype=dtype)
    model = load(tmp_path, dtype)
    once = feed(runner(model), *[1] * 41)
    for n in (2, 5, 16):
        got = feed(runner(model), 1, *[n] * (40 // n), *([40 % n] if 40 % n else []))
        torch.testing.assert_close(got, once, rtol=tolerance, atol=tolerance)
        assert torch.equal(got.argmax(-1), once.argmax(-1))


def test_sizes(tmp_path):
    theirs = tiny.write_llama(tmp_path, **SHAPES["untied bias"])
    model = load(tmp_path)
    assert model.parameters == sum(p.numel() for p in theirs.parameters())
    assert model.kv_bytes_per_token == 2 * 3 * 1 * 8 * 8
    assert model.new_cache(12).keys[2].shape == (12, 1, 8)


CONFIG = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "intermediate_size": 64,
}


def test_defaults_of_a_bare_config():
    """What transformers takes when an old config.json says nothing."""
    c = read_config(CONFIG)
    assert (c.kv_heads, c.head_dim, c.eps, c.rope_theta, c.rope_scaling, c.tied, c.attention_bias) == (4, 8, 1e-6, 1e4, None, False, False)


def test_rope_of_older_and_newer_configs():
    scaling = {"rope_type": "llama3", "factor": 8.0}
    old = read_config({**CONFIG, "rope_theta": 5e5, "rope_scaling": scaling})
    new = read_config({**CONFIG, "rope_parameters": {**scaling, "rope_theta": 5e5}})
    assert old.rope_theta == new.rope_theta == 5e5
    for read in (old, new):
        assert {**read.rope_scaling, **scaling} == read.rope_scaling and read.rope_scaling["original_max_position_embeddings"] == 128


@pytest.mark.parametrize("name", CONFIG)
def test_a_missing_field_is_named(name):
    with pytest.raises(ModelError, match=name):
        read_config({k: v for k, v in CONFIG.items() if k != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_act", "gelu"),
        ("num_attention_heads", 0),
        ("num_attention_heads", "4"),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 2.5),
        ("hidden_size", "32"),
        ("vocab_size", 0),
        ("head_dim", 7),
        ("max_position_embeddings", "128"),
        ("rms_norm_eps", "tiny"),
        ("rope_theta", "big"),
        ("rope_parameters", "none"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(name, value):
    with pytest.raises(ModelError, match=name):
        read_config({**CONFIG, name: value})
