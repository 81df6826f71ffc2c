"""Families that only transformers knows: its modules over our paged cache, against the same modules as they are."""

from __future__ import annotations

import json

import pytest
import torch

from headstart.core.errors import ModelError
from headstart.models.hf import HFDecoder
from tests import families, tiny
from tests.families import MHA, TEXT, Feed, feed, load, runner

# Other names of the same sizes.
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4, "num_local_experts": 4}
OTHERS = {
    "gpt_neox": {"rotary_pct": 0.5, **MHA},
    "glm": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "stablelm": {"partial_rotary_factor": 0.5, "use_qkv_bias": True},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.3},
    "cohere2": {"sliding_window": 7, "logit_scale": 0.3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    "mixtral": _EXPERTS,
    "qwen3_moe": {**_EXPERTS, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1]},
    "starcoder2": {"sliding_window": 7},
    "gpt2": {"n_positions": 128, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_logits_equal_transformers(tmp_path, kind):
    theirs = families.make(kind, OTHERS[kind])
    tiny.save(tmp_path, theirs)
    wanted = tiny.logits_of(theirs, TEXT)
    model = load(tmp_path)
    assert isinstance(model, HFDecoder) and wanted.std() > 0.1
    for counts in ([41], [29, 9, 1, 2], [7, 7, 7, 20], [5, *[1] * 36]):
        torch.testing.assert_close(feed(runner(model), *counts), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt_neox", "cohere2", "mixtral"])
def test_drafts_batches_and_rejection(tmp_path, kind):
    """Wrong drafts in between, and two texts in one pass."""
    theirs = families.make(kind, OTHERS[kind])
    tiny.save(tmp_path, theirs)
    wanted, run = tiny.logits_of(theirs, TEXT), runner(load(tmp_path))
    run.forward([Feed(TEXT[:8], 0, [5, 2, 9])])
    run.forward([Feed([3, 3, 3], 8, [5, 2, 9], 3), Feed(TEXT[:4], 0, [0, 1], 1)])
    got = run.forward([Feed(TEXT[8:10], 8, [5, 2, 9], 2), Feed(TEXT[4:7], 4, [0, 1], 3)])
    torch.testing.assert_close(got[0], wanted[8:10], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], wanted[4:7], rtol=1e-4, atol=1e-5)


def test_in_bfloat16_and_quantised(tmp_path):
    theirs = families.make("glm", OTHERS["glm"], scale=0.1, dtype=torch.bfloat16)
    tiny.save(tmp_path, theirs)
    wanted = tiny.logits_of(theirs, TEXT).float()
    torch.testing.assert_close(feed(runner(load(tmp_path, torch.bfloat16)), 41), wanted, rtol=0.02, atol=0.1)
    small = load(tmp_path, torch.float32, "int8")
    assert small.weight_bytes < load(tmp_path, torch.float32).weight_bytes / 1.5
    torch.testing.assert_close(feed(runner(small), 41), wanted, rtol=0.1, atol=0.3)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mamba", "recurrent"),
        ("qwen3_next", "recurrent"),
        ("t5", "encoder-decoder"),
        ("nonsense", "transformers knows"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(tmp_path, kind, words):
    (tmp_path / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


def test_missing_and_foreign_tensors_are_named(tmp_path):
    from safetensors.torch import load_file, save_file

    tiny.save(tmp_path, families.make("gpt_neox", OTHERS["gpt_neox"]))
    stored = load_file(tmp_path / "model.safetensors")
    missing = dict(stored)
    missing.pop("gpt_neox.layers.1.mlp.dense_h_to_4h.weight")
    for tensors, word in ((missing, "dense_h_to_4h"), ({**stored, "gpt_neox.extra.weight": torch.ones(3)}, "extra")):
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=word):
            load(tmp_path)
