"""`headstart models` and `headstart inspect`: what they say is what a load then does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from tests import families
from tests import tiny as checkpoints

Call = Callable[..., tuple[int, str, str]]


def test_models_lists_every_kind(headstart: Call) -> None:
    code, out, _ = headstart("models", "--json")
    entries = {e["model_type"]: e for e in json.loads(out)}
    assert code == 0 and len(entries) > 50
    assert {entries[k]["runs"] for k in families.FAMILIES} == {"native"} and entries["gemma3_text"]["gguf"] == "gemma3"
    assert entries["gpt_neox"]["runs"] == entries["mixtral"]["runs"] == "transformers"
    assert entries["mamba"]["runs"] == "refused" and "recurrent" in entries["mamba"]["reason"]
    text = headstart("models")[1]
    assert "gemma3_text (GGUF: gemma3)" in text and "recurrent" in text


def test_inspect_says_what_a_load_finds(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    checkpoints.write_llama(tmp_path / "other", vocab=200)
    checkpoints.write_tokenizer(tmp_path / "other")
    code, out, _ = headstart("inspect", tiny, "--draft", tiny, "--draft", tmp_path / "other", "--draft", tmp_path / "nothing", "--json")
    found = json.loads(out)
    model = load_model(open_checkpoint(str(tiny)), torch.float32, torch.device("cpu"))
    assert code == 0 and found["runs"] == "native" and found["parameters"] == model.parameters
    assert found["kv_bytes_per_token"]["float32"] == model.kv_bytes_per_token and found["context"] == model.config.max_len
    assert found["tokenizer"]["chat_template"] and found["tokenizer"]["eos"] == "<|end|>"
    same, other, nothing = found["drafts"]
    assert same["fits"] and same["size_of_target"] == 1
    assert other["fits"] and "translated" in other["why"] and not nothing["fits"] and "does not exist" in nothing["why"]
    text = headstart("inspect", tiny, "--draft", tmp_path / "other")[1]
    assert "on headstart's own decoder" in text and "so its drafts are translated" in text


def test_inspect_of_windows_other_code_and_refusals(headstart: Call, tmp_path: Path) -> None:
    for kind in ("gemma3_text", "gpt_neox"):
        changes = {**families.MHA, **families.SLIDING, "num_hidden_layers": 6} if kind == "gemma3_text" else families.MHA
        checkpoints.save(tmp_path / kind, families.make(kind, changes))
        checkpoints.write_tokenizer(tmp_path / kind)
    assert "7 tokens in 5 of 6 layers" in headstart("inspect", tmp_path / "gemma3_text")[1]
    assert "through transformers' code" in headstart("inspect", tmp_path / "gpt_neox")[1]
    checkpoints.edit_json(tmp_path / "gpt_neox" / "config.json", quantization_config={"quant_method": "awq"})
    code, out, _ = headstart("inspect", tmp_path / "gpt_neox")
    assert code == 0 and "not: " in out and "awq" in out
    assert headstart("inspect", tmp_path / "nowhere")[0] == 2


def test_a_draft_head_as_target_is_refused_with_its_verifier(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    relation = {"verifier": {"name_or_path": "org/target"}}
    checkpoints.save(tmp_path / "head", checkpoints.llama_model())
    checkpoints.edit_json(tmp_path / "head" / "config.json", speculators_model_type="eagle3", speculators_config=relation)
    checkpoints.write_tokenizer(tmp_path / "head")
    out = headstart("inspect", tmp_path / "head")[1]
    assert "draft head" in out and "load org/target" in out
    assert "made for org/target" in headstart("inspect", tiny, "--draft", tmp_path / "head")[1]
