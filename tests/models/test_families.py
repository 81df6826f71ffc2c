"""Every family against transformers in fp64 and bfloat16, and the same logits however a text is fed across windows and blocks."""

from __future__ import annotations

import pytest
import torch

from headstart.core.errors import ModelError
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from tests import families, tiny
from tests.families import FAMILIES, TEXT, feed, load, runner

VARIANTS = [(kind, name) for kind, variants in FAMILIES.items() for name in variants]
SLIDERS = [("mistral", "GQA sliding"), ("gemma2", "GQA"), ("gemma3_text", "GQA"), ("qwen2", "MQA upper layers slide")]


@pytest.mark.parametrize(("kind", "name"), VARIANTS)
def test_logits_equal_transformers(tmp_path, kind, name):
    changes = FAMILIES[kind][name]
    text = TEXT[: changes.get("max_position_embeddings", 41)]
    theirs = families.make(kind, changes)
    tiny.save(tmp_path, theirs)
    got = feed(runner(load(tmp_path)), *([29, 9, 1, 2] if len(text) == 41 else [16]), text=text)
    assert got.std() > 0.3
    torch.testing.assert_close(got, tiny.logits_of(families.exact(theirs), text), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_in_bfloat16(tmp_path, kind):
    """Against transformers as it is, rounding and all."""
    theirs = families.make(kind, next(iter(FAMILIES[kind].values())), scale=0.1, dtype=torch.bfloat16)
    tiny.save(tmp_path, theirs)
    got = feed(runner(load(tmp_path, torch.bfloat16)), 29, 9, 1, 2)
    torch.testing.assert_close(got, tiny.logits_of(theirs, TEXT).float(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("architecture", families.GGUF)
def test_gguf_files_of_every_architecture(tmp_path, architecture):
    """Rows reordered or not, norms plus one or not, metadata instead of a config: the logits of transformers' model."""
    theirs = families.write_gguf(tmp_path / "m.gguf", architecture)
    got = feed(runner(load_model(open_checkpoint(str(tmp_path / "m.gguf")), torch.float32, families.CPU)), 29, 9, 1, 2)
    torch.testing.assert_close(got, tiny.logits_of(families.exact(theirs), TEXT), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("kind", "name"), SLIDERS)
def test_windows_do_not_depend_on_how_a_text_is_fed(tmp_path, kind, name):
    """Chunks that end before, on and behind the edge of the window (7) and of blocks (4)."""
    tiny.save(tmp_path, families.make(kind, FAMILIES[kind][name]))
    model = load(tmp_path)
    assert model.window == 7
    once = feed(runner(model), 41)
    for counts in ([1] * 41, [7, 34], [6, 1, 1, 33], [8, 7, 7, 19], [4, 4, 4, 29], [3, 38], [33, 8]):
        torch.testing.assert_close(feed(runner(model), *counts), once, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("kind", "name"), SLIDERS)
def test_drafts_rejected_across_a_window_leave_nothing_behind(tmp_path, kind, name):
    """Wrong drafts of every length after every prefix around the window's edge, then the right tokens over them."""
    tiny.save(tmp_path, families.make(kind, FAMILIES[kind][name]))
    model = load(tmp_path)
    once = feed(runner(model), 41)
    for start in (5, 6, 7, 8, 13, 14, 15):
        run = runner(model)
        run.forward([families.Feed(TEXT[:start], 0, families.TABLE)])
        for wrong in (1, 3, 9):
            run.forward([families.Feed([(t + 1) % 97 for t in TEXT[start : start + wrong]], start, families.TABLE, wrong)])
        got = run.forward([families.Feed(TEXT[start : start + 4], start, families.TABLE, 4)])[0]
        torch.testing.assert_close(got, once[start : start + 4], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ("gemma2", {"query_pre_attn_scalar": "x"}, "query_pre_attn_scalar"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("qwen3", {"layer_types": ["full_attention"], "use_sliding_window": True}, "layer_types"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("phi3", {"intermediate_size": 40}, "gate_up_proj"),
        ("phi3", {"num_key_value_heads": 4}, "qkv_proj"),
        ("granite", {"logits_scaling": 0}, "logits_scaling"),
        ("olmo2", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}}, "head_dim"),
    ],
)
def test_fields_that_make_no_sense_are_named(tmp_path, kind, changes, words):
    tiny.save(tmp_path, families.make(kind, {}))
    tiny.edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ModelError, match=words):
        load_model(open_checkpoint(str(tmp_path)), torch.float32, families.CPU)


def test_configs_as_the_hub_has_them():
    """The spellings of real config.json files, which leave out what is their class's default."""
    from headstart.models import gemma, mistral, qwen2

    base = {k: v for k, v in families.SHAPE.items() if "token" not in k}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 5, "sliding_window_pattern": 3}
    g = gemma.read_config({**base, **old, "model_type": "gemma3_text"})
    assert g.sliding == (True, True, False) and g.window == 5 and g.tied and g.rope_theta == 1e6 and g.local_rope["rope_theta"] == 1e4
    scaled = gemma.read_config({**base, **old, "model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert scaled.rope_scaling["factor"] == 8.0 and "factor" not in scaled.local_rope
    assert gemma.read_config({**base, "model_type": "gemma2"}).logit_cap == 30.0
    assert mistral.read_config(base).window == 4096 and mistral.read_config({**base, "sliding_window": None}).window is None
    assert qwen2.read_config({**base, "sliding_window": 5, "max_window_layers": 0}).window is None
