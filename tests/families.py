"""Every family as tiny random checkpoints, and how far our logits are from those of transformers.

    python -m tests.families          print the table in docs/models.md

The reference is transformers' own module code with attention, norms and softmax in the dtype of the model (`exact`): what is
compared is the mathematics, not who rounds where. In bfloat16 both compute as they are.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Runner
from tests import tiny

CPU = torch.device("cpu")
VOCAB, MAX_LEN = 97, 128
TEXT = random.Random(1).choices(range(VOCAB), k=41)
BLOCK, TABLE = 4, [7, 3, 4, 5, 11, 0, 9, 8, 2, 1, 6, 10]

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_LEN,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
MHA, MQA, WIDE = {"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"head_dim": 12}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA3 = {"rope_parameters": tiny.LLAMA3_ROPE}
SHORT, LONG = [1.0 + 0.1 * i for i in range(4)], [2.0 + 0.7 * i for i in range(4)]
LONGROPE = rope("longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=16)
SLIDING = {"sliding_window": 7}
_PHI_LONG = {"rope_parameters": {k: v for k, v in LONGROPE["rope_parameters"].items() if k[0] != "o"}}

# model_type -> variants: the changes to SHAPE, by a name.
FAMILIES: dict[str, dict[str, Mapping[str, Any]]] = {
    "llama": {
        "GQA tied": TIED,
        "MHA untied": MHA | UNTIED,
        "MQA wide heads biases": MQA | WIDE | {"attention_bias": True, "mlp_bias": True},
        "linear rope": rope("linear", factor=2.0),
        "dynamic rope": rope("dynamic", factor=2.0),
        "llama3 rope": LLAMA3,
        "yarn": YARN,
        "yarn with mscale, no truncation": rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=1.0,
            mscale_all_dim=0.7,
            truncate=False,
            beta_fast=8,
            beta_slow=2,
        ),
        "longrope, long": LONGROPE,
        "longrope, short": LONGROPE | {"max_position_embeddings": 16, "rope_parameters": {**LONGROPE["rope_parameters"], "factor": 4.0}},
    },
    "mistral": {"GQA sliding": SLIDING | UNTIED, "MHA no window": MHA | {"sliding_window": None}, "MQA wide heads": MQA | WIDE | SLIDING},
    "qwen2": {
        "GQA tied": TIED,
        "MHA untied": MHA | UNTIED,
        "MQA upper layers slide": MQA | SLIDING | {"use_sliding_window": True, "max_window_layers": 1},
        "yarn": YARN,
    },
    "qwen3": {
        "GQA wide heads": WIDE,
        "MHA tied biases": MHA | TIED | {"attention_bias": True},
        "MQA slides": MQA | SLIDING | {"use_sliding_window": True, "max_window_layers": 2},
        "yarn": YARN,
    },
    "gemma2": {
        "GQA": SLIDING | {"query_pre_attn_scalar": 11, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
        "MHA untied no caps": MHA | SLIDING | UNTIED | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        "MQA wide heads": MQA | WIDE | SLIDING,
    },
    "gemma3_text": {
        "GQA": SLIDING | {"query_pre_attn_scalar": 11},
        "MHA pattern of 2": MHA | SLIDING | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "MQA wide heads, scaled": MQA
        | WIDE
        | SLIDING
        | {
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    },
    "phi3": {
        "GQA": {"original_max_position_embeddings": MAX_LEN},
        "MHA sliding": MHA | SLIDING,
        "MQA partial rotary": MQA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "longrope, long": _PHI_LONG | {"original_max_position_embeddings": 16},
    },
    "smollm3": {
        "GQA": {"no_rope_layer_interval": 2},
        "MHA untied biases": MHA | UNTIED | {"attention_bias": True, "mlp_bias": True},
        "MQA NoPE layers slide": MQA | SLIDING | {"use_sliding_window": True, "no_rope_layers": [1, 0, 1]},
        "yarn": YARN,
    },
    "olmo2": {"MHA": MHA, "GQA tied biases": TIED | {"attention_bias": True}, "MQA": MQA},
    "granite": {
        "GQA": {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5},
        "MHA biases": MHA | {"attention_bias": True, "mlp_bias": True},
        "MQA tied": MQA | TIED | {"logits_scaling": 3.0},
    },
}


def make(model_type: str, changes: Mapping[str, Any], *, seed: int = 0, scale: float = 0.3, dtype: torch.dtype = torch.float64) -> Any:
    """A random model of transformers. `scale`: standard deviation of the weights; larger makes bolder laws."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**SHAPE, **changes})
    config._attn_implementation = config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale
            p.copy_(noise if "norm" not in name or model_type.startswith("gemma") else 1 + noise)
    return model


def exact(model: Any) -> Any:
    """transformers' model without its own detours through fp32: norms, scores and softmax in the dtype of the model."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register("exact", _dense)
    AttentionMaskInterface.register("exact", eager_mask)
    model.set_attn_implementation("exact")
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
            weight = module.weight + 1 if type(module).__name__.startswith("Gemma") else module.weight
            module.forward = lambda x, eps=eps, weight=weight: weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return model


def _dense(module, query, key, value, mask, scaling=None, softcap=None, **_):
    """Attention written out: [1, heads, rows, d] over repeated keys."""
    group = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(group, 1).transpose(-1, -2) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    return (torch.softmax(scores, -1) @ value.repeat_interleave(group, 1)).transpose(1, 2).contiguous(), None


def load(folder: Path, dtype: torch.dtype = torch.float64, quantization: str | None = None) -> Any:
    return load_model(open_checkpoint(str(folder)), dtype, CPU, quantization)


def runner(model: Any) -> Runner:
    return Runner(model, len(TABLE), BLOCK, model.config.vocab_size, MAX_LEN)


def feed(run: Runner, *counts: int, text: Sequence[int] = TEXT) -> torch.Tensor:
    """Logits after every token of a text, fed in passes of so many tokens."""
    out, start = [], 0
    for n in counts:
        out += run.forward([Feed(text[start : start + n], start, TABLE, n)])
        start += n
    assert start == len(text)
    return torch.cat(out)


# GGUF: architecture -> (model_type, changes to SHAPE, metadata beside that of every file)
GGUF: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "llama": ("llama", UNTIED, {}),
    "qwen2": ("qwen2", TIED, {}),
    "qwen3": ("qwen3", WIDE, {}),
    "gemma2": (
        "gemma2",
        SLIDING | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
        {"attention.sliding_window": 7, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "gemma3_text",
        SLIDING | {"query_pre_attn_scalar": 8, "num_hidden_layers": 7},
        {"attention.sliding_window": 7, "rope.freq_base": 1e6},
    ),
    "phi3": ("phi3", MHA | SLIDING, {"attention.sliding_window": 7}),
    "olmo2": ("olmo2", MHA, {}),
    "granite": (
        "granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25, "logits_scaling": 2.5},
        {"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.25, "logit_scale": 2.5},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, {}),
}
INTERLEAVED = ("llama", "granite", "smollm3")  # llama.cpp turns neighbours in these, and its converter reorders rows of q and k


def write_gguf(path: Path, architecture: str, kind: str = "F32") -> Any:
    """A random model as GGUF, its tensors named by the gguf library's own table; returns the model."""
    import gguf

    model_type, changes, metadata = GGUF[architecture]
    model = make(model_type, changes, dtype=torch.float32)
    c, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim if hasattr(c, "head_dim") else c.hidden_size // c.num_attention_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)
    for name, value in metadata.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{architecture}.{name}", value)
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), 9)
    for name, p in model.named_parameters():
        array = p.detach().float().numpy()
        if architecture.startswith("gemma") and "norm" in name:
            array = array + 1
        for block, heads in (("q_proj", c.num_attention_heads), ("k_proj", c.num_key_value_heads)):
            if block in name and architecture in INTERLEAVED:
                array = tiny._interleave(array, heads)
        stored = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(ours, gguf.quants.quantize(array.copy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def errors(folder: Path, model_type: str, changes: Mapping[str, Any]) -> tuple[float, float, float]:
    """Largest difference of the logits in fp64, in bfloat16, and the spread of the logits."""
    text = TEXT[: changes.get("max_position_embeddings", MAX_LEN)]
    # In the order of transformers' own passes: prefill, a chunk across window and blocks, single tokens.
    counts = [len(text) - 12, 9, 1, 2] if len(text) > 12 else [len(text)]
    theirs = make(model_type, changes)
    tiny.save(folder / "f64", theirs)
    low = make(model_type, changes, dtype=torch.bfloat16, scale=0.1)
    tiny.save(folder / "bf16", low)
    wanted = tiny.logits_of(exact(theirs), text)
    high = (feed(runner(load(folder / "f64")), *counts, text=text) - wanted).abs().max()
    narrow = tiny.logits_of(low, text).float()
    assert narrow.std() > 0.1, "logits that hardly differ prove nothing"
    rough = (feed(runner(load(folder / "bf16", torch.bfloat16)), *counts, text=text) - narrow).abs().max()
    return float(high), float(rough), float(wanted.std())


def main() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    print("| family | variant | fp64 | bfloat16 |\n|---|---|---|---|")
    for model_type, variants in FAMILIES.items():
        for name, changes in variants.items():
            with tempfile.TemporaryDirectory() as folder:
                high, rough, _ = errors(Path(folder), model_type, changes)
            print(f"| {model_type} | {name} | {high:.1e} | {rough:.1e} |", flush=True)


if __name__ == "__main__":
    main()
