"""Parameters and KV of real architectures, worked out by hand; and every built-in config against its published count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart.core.errors import ModelError
from headstart.core.memory import bytes_per_token, sequence_bytes
from headstart.plan import source
from headstart.plan.shape import read_shape
from headstart.plan.source import find_shape
from tests import families


def shape(name: str):
    return find_shape(name)[0]


@pytest.mark.parametrize("entry", source._entries(), ids=lambda e: e["id"])
def test_every_built_in_model_has_its_published_count(entry: dict) -> None:
    assert shape(entry["id"]).parameters == entry["parameters"]


def test_llama_3_70b_grouped_queries() -> None:
    s = shape("meta-llama/Meta-Llama-3-70B-Instruct")
    layer = 8192 * (64 + 8 + 8) * 128 + 64 * 128 * 8192 + 3 * 8192 * 28672 + 2 * 8192
    assert s.parameters == 80 * layer + 8192 + 2 * 128256 * 8192 == 70_553_706_496
    assert bytes_per_token(s.cache, 2) == 2 * 80 * 8 * 128 * 2 == 320 * 1024  # 8 KV heads, not 64
    assert 5 * bytes_per_token(s.cache, 2) == 1_638_400
    assert round(s.parameters * 2 / 1e9) == 141


def test_qwen_25_7b_has_biases_and_two_tables() -> None:
    s = shape("Qwen2.5-7B-Instruct")
    layer = 3584 * (28 + 4 + 4) * 128 + (28 + 4 + 4) * 128 + 28 * 128 * 3584 + 3 * 3584 * 18944 + 2 * 3584
    assert s.parameters == 28 * layer + 3584 + 2 * 152064 * 3584
    assert bytes_per_token(s.cache, 2) == 2 * 28 * 4 * 128 * 2 and s.embedding == 152064 * 3584


def test_qwen3_30b_reads_more_experts_in_a_wider_pass() -> None:
    s = shape("qwen3-30b-a3b")
    attention = 2048 * (32 + 4 + 4) * 128 + 32 * 128 * 2048 + 2 * 128
    each = 3 * 2048 * 768
    assert s.parameters == 48 * (attention + 2048 * 128 + 128 * each + 2 * 2048) + 2048 + 2 * 151936 * 2048
    dense = s.parameters - 151936 * 2048 - 48 * 128 * each
    assert s.read(1) == pytest.approx(dense + 48 * 8 * each) and 2.9e9 < s.active < 3.4e9  # "A3B"
    # Two rows choose 8 of 128 each: 16 less those in common, 8 * 8 / 128.
    assert s.read(2) == pytest.approx(dense + 48 * 15.5 * each) and s.read(10**6) == pytest.approx(s.parameters - s.embedding)


def test_mistral_7b_looks_back_4096_tokens() -> None:
    s = shape("mistralai/Mistral-7B-v0.1")
    assert bytes_per_token(s.cache, 2) == 2 * 32 * 8 * 128 * 2 == 131_072
    assert sequence_bytes(s.cache, 4096, 2) == sequence_bytes(s.cache, 32768, 2) == 4096 * 131_072
    assert sequence_bytes(shape("Mistral-7B-v0.3").cache, 32768, 2) == 32768 * 131_072


def test_gemma_2_9b_has_every_other_layer_local() -> None:
    s = shape("google/gemma-2-9b-it")
    layer = 3584 * (16 + 8 + 8) * 256 + 16 * 256 * 3584 + 3 * 3584 * 14336 + 4 * 3584
    assert s.parameters == 42 * layer + 3584 + 256000 * 3584
    of_a_layer = 2 * 8 * 256 * 2
    assert sequence_bytes(s.cache, 8192, 2) == (21 * 8192 + 21 * 4096) * of_a_layer
    assert s.cache[0].window == 4096 and s.cache[1].window is None


def test_gemma_3_27b_has_five_of_six_layers_local() -> None:
    s = shape("gemma-3-27b-it")
    local = [c.window for c in s.cache]
    assert local[:6] == [1024] * 5 + [None] and local.count(None) == 62 // 6
    assert sequence_bytes(s.cache, 131072, 2) == (10 * 131072 + 52 * 1024) * 2 * 16 * 128 * 2


def test_deepseek_v3_keeps_a_latent() -> None:
    s = shape("deepseek-ai/DeepSeek-V3")
    attention = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    each = 3 * 7168 * 2048
    sparse = 7168 * 256 + 256 + 257 * each
    assert s.parameters == 61 * (attention + 2 * 7168) + 3 * 3 * 7168 * 18432 + 58 * sparse + 7168 + 2 * 129280 * 7168
    assert bytes_per_token(s.cache, 2) == 61 * (512 + 64) * 2 == 70_272
    assert 36e9 < s.active < 38e9 and not s.split_cache


def test_smollm_has_as_many_kv_heads_as_heads() -> None:
    s = shape("SmolLM2-1.7B")
    assert bytes_per_token(s.cache, 2) == 2 * 24 * 32 * 64 * 2 and "multi-head" in s.attention


def test_a_text_part_and_defaults(tmp_path: Path) -> None:
    config = {
        "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_shape(str(tmp_path))[0].parameters == shape("gemma-3-4b").parameters
    kinds = ["full_attention", "sliding_attention"] * 17
    named = {**config, "text_config": {**config["text_config"], "layer_types": kinds}}
    assert [c.window for c in read_shape("x", named).cache[:2]] == [None, 1024]


LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_counts_are_those_of_transformers(bias: bool, tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {**LLAMA, "tie_word_embeddings": tied, "attention_bias": bias, "mlp_bias": bias}
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"}))
    assert read_shape("x", config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("family", "variant"), [(f, v) for f, variants in families.FAMILIES.items() for v in variants])
def test_families_that_run_here_are_counted_as_they_are_loaded(family: str, variant: str) -> None:
    from headstart.runtime.loader import FAMILIES

    model = families.make(family, families.FAMILIES[family][variant])
    config = model.config.to_dict()
    found, own = read_shape("x", config), FAMILIES[family].read_config(config)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert [c.window for c in found.cache] == [own.window if local else None for local in own.sliding or [False] * own.layers]
    assert {c.numbers for c in found.cache} == {2 * own.kv_heads * own.head_dim}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "llama"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "12"}, "not a positive integer"),
        ({"num_hidden_layers": True}, "not a positive integer"),
        ({"vocab_size": -1}, "not a positive integer"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 4}, "make no sense"),
    ],
)
def test_broken_configs_are_named(changes: dict, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_shape("my model", {**LLAMA, **changes})


def test_what_a_name_stands_for(tmp_path: Path) -> None:
    assert shape("LLAMA-3.2-1b-instruct").name == "meta-llama/Llama-3.2-1B-instruct" and shape("deepseek-r1").parameters > 6e11
    for name, words in (
        (tmp_path, "no config.json"),
        ("Llama-3-7B", "Llama-3"),
        ("", "hub id"),
        ("/nonexistent/x", "no file"),
    ):
        with pytest.raises(ModelError, match=words):
            find_shape(str(name))
    for text, words in (("{", "readable"), ("[]", "holds a list"), ("\xff", "readable"), ("[" * 9999, "readable")):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelError, match=words):
            find_shape(str(tmp_path))
