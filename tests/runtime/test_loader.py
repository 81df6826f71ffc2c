"""From files to a model: what does not fit is refused when it is loaded, by name, and no code of a checkpoint ever runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headstart.core.errors import ModelError
from headstart.kernels import library
from headstart.ops import device as device_module
from headstart.ops.quant import BLOCKS, quantise
from headstart.runtime import checkpoint as checkpoint_module
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import dtype_for, load_model
from headstart.runtime.runner import Feed, Runner
from headstart.runtime.tokenizer import load_tokenizer
from tests import tiny

CPU = torch.device("cpu")
FILE = "model.safetensors"
MARK = "import pathlib\npathlib.Path({marker!r}).write_text('ran')\nclass Evil:\n    pass\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "model"
    tiny.write_llama(folder, tied=False)
    tiny.write_tokenizer(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "model"))


def load(folder, dtype=torch.float32):
    return load_model(open_checkpoint(str(folder)), dtype, CPU)


def refused(folder, *words: str) -> None:
    with pytest.raises(ModelError) as e:
        load(folder)
    assert "\n" not in str(e.value)
    for word in words:
        assert word in str(e.value), str(e.value)


def change_tensors(folder, **tensors) -> None:
    """Set tensors, `__` for a dot in their names; None removes one."""
    stored = load_file(folder / FILE)
    stored.update({name.replace("__", "."): t for name, t in tensors.items()})
    save_file({n: t.contiguous() for n, t in stored.items() if t is not None}, folder / FILE)


def test_it_loads(folder):
    model = load(folder)
    assert model.parameters == sum(t.numel() for t in load_file(folder / FILE).values())
    assert model.dtype is torch.float32 and model.config.layers == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mamba", "recurrent"),
        ("gpt2", "tensors"),
        ("nonsense", "transformers"),
        *((k, "model_type") for k in ("", None, ["llama"], 3)),
    ],
)
def test_other_model_types(folder, kind, words):
    """Refused with the reason; gpt2 would run through transformers, but these are no weights of it."""
    tiny.edit_json(folder / "config.json", model_type=kind)
    refused(folder, words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 90),
        ("vocab_size", 200),
        ("hidden_size", 40),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("num_key_value_heads", 1),
        ("head_dim", 4),
        ("intermediate_size", 128),
        ("num_hidden_layers", 3),
        ("num_hidden_layers", 1),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "2"),
        ("num_attention_heads", 0),
        ("hidden_size", "32"),
        ("attention_bias", True),
        ("rope_parameters", {"rope_type": "yarn", "factor": -2.0}),
        ("rope_parameters", {"rope_type": "longrope", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "nonsense", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "llama3", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "linear"}),
        ("rope_parameters", "default"),
    ],
)
def test_configs_that_do_not_fit_the_weights(folder, field, value):
    """At loading, not as a crash or a wrong text at the first request."""
    tiny.edit_json(folder / "config.json", **{field: value})
    refused(folder)


@pytest.mark.parametrize("method", ["fp8", "gptq", "compressed-tensors", "bitsandbytes"])
def test_quantised_safetensors_are_refused(folder, method):
    """Their tensors need scales that nobody here applies: they would load and say nonsense."""
    tiny.edit_json(folder / "config.json", quantization_config={"quant_method": method})
    refused(folder, "quantization_config", method)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model__embed_tokens__weight", (97,)),
        ("model__embed_tokens__weight", (97, 31)),
        ("model__norm__weight", (31,)),
        ("lm_head__weight", (97, 31)),
        ("lm_head__weight", (96, 32)),
        ("model__layers__0__input_layernorm__weight", (1,)),
        ("model__layers__0__self_attn__q_proj__weight", (31, 32)),
        ("model__layers__1__self_attn__k_proj__weight", (32, 32)),
        ("model__layers__0__self_attn__o_proj__weight", (32, 31)),
        ("model__layers__1__mlp__up_proj__weight", (63, 32)),
        ("model__layers__1__mlp__down_proj__weight", (32, 65)),
    ],
)
def test_shapes_that_do_not_fit_are_named(folder, name, shape):
    change_tensors(folder, **{name: torch.ones(shape)})
    refused(folder, name.replace("__", "."))


@pytest.mark.parametrize("name", ["model__embed_tokens__weight", "model__layers__1__self_attn__v_proj__weight", "lm_head__weight"])
def test_a_missing_tensor_is_named(folder, name):
    change_tensors(folder, **{name: None})
    refused(folder, name.replace("__", "."))


@pytest.mark.parametrize("name", ["model__layers__0__self_attn__q_norm__weight", "model__layers__1__self_attn__q_proj__bias"])
def test_a_tensor_nobody_applies_is_named(folder, name):
    """Part of the model, so leaving it out silently would be another model."""
    change_tensors(folder, **{name: torch.ones(8)})
    refused(folder, name.replace("__", "."))


def test_leftovers_of_older_checkpoints_are_no_weights(folder):
    """Rotary buffers, as old conversions stored them."""
    change_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))
    load(folder)


def test_a_tied_head_may_be_stored_all_the_same(folder):
    change_tensors(folder, lm_head__weight=load_file(folder / FILE)["model.embed_tokens.weight"].clone())
    tiny.edit_json(folder / "config.json", tie_word_embeddings=True)
    assert load(folder).config.tied


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_by_name(folder, bad):
    weight = load_file(folder / FILE)["model.layers.1.mlp.up_proj.weight"]
    weight[5, 5] = bad
    change_tensors(folder, model__layers__1__mlp__up_proj__weight=weight)
    refused(folder, "model.layers.1.mlp.up_proj.weight")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool])
def test_tensors_of_whole_numbers_are_refused(folder, dtype):
    """Packed or scaled weights of some quantisation."""
    change_tensors(folder, model__norm__weight=torch.ones(32, dtype=dtype))
    refused(folder, "model.norm.weight")


# Code


def plant(folder, marker) -> None:
    """Every way in which a config asks transformers to import a file of the checkpoint."""
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "__init__.py", "conftest.py"):
        (folder / name).write_text(MARK.format(marker=str(marker)))
    auto = {
        "AutoConfig": "configuration_evil.Evil",
        "AutoModelForCausalLM": "modeling_evil.Evil",
        "AutoTokenizer": ["tokenization_evil.Evil", None],
    }
    tiny.edit_json(folder / "config.json", auto_map=auto)
    tiny.edit_json(folder / "tokenizer_config.json", auto_map=auto)


@pytest.mark.parametrize("change", ["none", "model_type", "tokenizer_class", "no tokenizer.json"])
def test_code_of_a_checkpoint_never_runs(folder, tmp_path, change, monkeypatch):
    """Loaded without it, or refused; and nobody is asked."""
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("a question was asked"))
    marker = tmp_path / "marker"
    plant(folder, marker)
    if change == "model_type":
        tiny.edit_json(folder / "config.json", model_type="evil", architectures=["Evil"])
    if change == "tokenizer_class":
        tiny.edit_json(folder / "tokenizer_config.json", tokenizer_class="Evil")
    if change == "no tokenizer.json":
        (folder / "tokenizer.json").unlink()
    checkpoint = open_checkpoint(str(folder))
    for step in (lambda: load_tokenizer(checkpoint), lambda: load_model(checkpoint, torch.float32, CPU)):
        try:
            step()
        except ModelError as e:
            assert change != "none", e
    assert not marker.exists()


def test_a_chat_template_cannot_reach_the_machine(folder, tmp_path):
    """Templates are code too: they run in transformers' sandbox."""
    marker = tmp_path / "marker"
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.mkdir(" + json.dumps(str(marker)) + ") }}"
    (folder / "chat_template.jinja").write_text(evil)
    tokenizer = load_tokenizer(open_checkpoint(str(folder)))
    with pytest.raises(Exception, match=r"unsafe|undefined"):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert not marker.exists()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_loading_holds_little_beyond_the_weights(tmp_path, stored):
    """At no time more than the weights and three of the largest tensor: read, joined and packed."""
    model = tiny.llama_model(vocab=300, tied=False, hidden=64, intermediate=256, layers=12).to(stored)
    tiny.save(tmp_path, model)
    largest = 4 * max(t.numel() for t in model.parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loaded = load(tmp_path)
    held = [0]
    for event in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held.append(held[-1] + event.nbytes())
    mapped = (tmp_path / FILE).stat().st_size  # pages of the file, which the profile counts as well
    assert loaded.weight_bytes + mapped // 2 < max(held) <= loaded.weight_bytes + mapped + 3 * largest


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_quantised_at_load(tmp_path, kind, tied):
    """From safetensors: a third to a sixth of the bytes in fp32, logits as near as the bits allow, nothing of 2 dimensions left out."""
    theirs = tiny.write_llama(tmp_path, tied=tied, hidden=64, intermediate=128, scale=0.1)
    full = load(tmp_path)
    model = load_model(open_checkpoint(str(tmp_path)), torch.float32, CPU, kind)
    assert model.parameters == full.parameters and full.weight_bytes == 4 * full.parameters
    assert model.weight_bytes < full.weight_bytes / (3 if kind == "int8" else 4)
    text = [5, 17, 3, 80, 2, 9]
    (got,) = Runner(model, 4, 4, 97, 128).forward([Feed(text, 0, [0, 1], 6)])
    wanted = tiny.logits_of(theirs, text).float()
    assert float((got - wanted).abs().max()) < float(wanted.std()) * (0.1 if kind == "int8" else 1.0)


@pytest.mark.parametrize(("kind", "block"), [("int8", "Q8_0"), ("int4", "Q4_0"), ("int4", "Q4_1"), ("int4", "F16"), ("int8", "Q4_1")])
def test_quantised_from_gguf(tmp_path, monkeypatch, kind, block):
    """Blocks of the kind asked for run as the dequantised file does; others are quantised anew, vocabulary tables always in 8 bits."""
    model = tiny.llama_model(vocab=len(tiny.vocabulary()[0]), hidden=64, intermediate=128, scale=0.1)
    tiny.write_gguf(tmp_path / "m.gguf", model, block)
    full = load(tmp_path / "m.gguf")
    anew = []
    monkeypatch.setattr(checkpoint_module, "quantise", lambda w, k: anew.append((len(w), k)) or quantise(w, k))
    quantised = load_model(open_checkpoint(str(tmp_path / "m.gguf")), torch.float32, CPU, kind)
    straight = BLOCKS.get(block) == kind
    assert {k for rows, k in anew if rows < 200} == (set() if straight else {kind})
    assert [k for rows, k in anew if rows > 200] == ([] if block == "Q8_0" else ["int8"])
    text = [5, 280, 3, 80, 2, 9]
    got, wanted = (Runner(m, 4, 4, 97, 128).forward([Feed(text, 0, [0, 1], 6)])[0] for m in (quantised, full))
    near = 1e-3 if block == "Q8_0" else 0.1 if straight or kind == "int8" else 1.0
    assert float((got - wanted).abs().max()) < float(wanted.std()) * near


def test_damaged_scales_are_refused(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=len(tiny.vocabulary()[0])), "Q8_0")
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    offset = open_checkpoint(str(tmp_path / "m.gguf")).gguf._tensors["model.layers.1.mlp.down_proj.weight"][3]
    raw[offset : offset + 2] = b"\xff\x7f"
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj"):
        load_model(open_checkpoint(str(tmp_path / "m.gguf")), torch.float32, CPU, "int8")


def test_auto_is_no_finer_than_what_is_stored_where_the_kernels_run(folder, monkeypatch):
    monkeypatch.setattr(device_module, "computes_bf16", lambda device: False)
    config = json.loads((folder / "config.json").read_text())

    def auto(name: str = "auto", **changed: object) -> torch.dtype:
        (folder / "config.json").write_text(json.dumps({**{k: v for k, v in config.items() if k != "torch_dtype"}, **changed}))
        return dtype_for(name, open_checkpoint(str(folder)), CPU)

    kernels = torch.bfloat16 if library.active().handle is not None else torch.float32
    assert auto(dtype="bfloat16") is auto(dtype=None, torch_dtype="bfloat16") is kernels
    assert auto(dtype="float32") is auto(dtype="float16") is auto(dtype=None) is torch.float32  # bfloat16 would lose digits
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    for other in ({"model_type": "gpt_neox"}, {"rope_parameters": yarn, "rope_scaling": yarn}, {"head_dim": 512}):
        assert auto(dtype="bfloat16", **other) is torch.float32  # torch runs these, or their attention
    assert auto("float32", dtype="bfloat16") is torch.float32
    monkeypatch.setenv(library.VARIABLE, "torch")
    assert auto(dtype="bfloat16") is torch.float32
    monkeypatch.setattr(device_module, "computes_bf16", lambda device: True)
    assert auto(dtype="float32") is torch.bfloat16
