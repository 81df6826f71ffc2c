"""What a draft is left as: a head in the speculators layout (vLLM), a small model as a plain checkpoint; each with a model card.

The layout is checked by name and shape before anything is written: a loader that skips what it does not know would say nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headstart.core.errors import ConfigError
from headstart.models.head import HeadConfig

VERSION = "0.3.0"  # of the speculators layout


def head_config(config: HeadConfig, target: str, architectures: Sequence[str], drafts: int) -> dict[str, Any]:
    """config.json of a head."""
    c = config.layer
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "dtype": "float16",
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": False,
        "eagle_aux_hidden_state_layer_ids": list(config.taps),
        "transformer_layer_config": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": c.vocab_size,
            "hidden_size": c.hidden,
            "intermediate_size": c.intermediate,
            "num_hidden_layers": 1,
            "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": c.eps,
            "max_position_embeddings": c.max_len,
            "rope_theta": c.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": drafts, "verifier_accept_k": 1, "accept_tolerance": 0.0}
            ],
            "verifier": {"name_or_path": target, "architectures": list(architectures)},
        },
    }


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the layout but the optional embedding, with its shape."""
    c = config.layer
    queries, keys, layer = c.heads * c.head_dim, c.kv_heads * c.head_dim, "layers.0."
    return {
        "fc.weight": (c.hidden, len(config.taps) * config.target_hidden),
        f"{layer}input_layernorm.weight": (c.hidden,),
        f"{layer}hidden_norm.weight": (c.hidden,),
        f"{layer}post_attention_layernorm.weight": (c.hidden,),
        f"{layer}self_attn.q_proj.weight": (queries, 2 * c.hidden),
        f"{layer}self_attn.k_proj.weight": (keys, 2 * c.hidden),
        f"{layer}self_attn.v_proj.weight": (keys, 2 * c.hidden),
        f"{layer}self_attn.o_proj.weight": (c.hidden, queries),
        f"{layer}mlp.gate_proj.weight": (c.intermediate, c.hidden),
        f"{layer}mlp.up_proj.weight": (c.intermediate, c.hidden),
        f"{layer}mlp.down_proj.weight": (c.hidden, c.intermediate),
        "norm.weight": (c.hidden,),
        "lm_head.weight": (config.draft_vocab, c.hidden),
        "d2t": (config.draft_vocab,),
        "t2d": (c.vocab_size,),
    }


def export_head(folder: Path, config: HeadConfig, tensors: Mapping[str, Tensor], ids: Tensor, said: dict[str, Any]) -> None:
    """Write a head: 16-bit weights, the maps of its vocabulary, config.json. Raises ConfigError when it is not what the layout says."""
    known = torch.zeros(config.layer.vocab_size, dtype=torch.bool)
    known[ids] = True
    whole = {**tensors, "d2t": ids - torch.arange(len(ids)), "t2d": known}
    shapes = head_shapes(config)
    wrong = [n for n in {**shapes, **whole} if n not in whole or n not in shapes or tuple(whole[n].shape) != shapes[n]]
    if wrong:
        raise ConfigError(f"the head does not fit the speculators layout at {', '.join(wrong)}: please report this")
    write_weights(folder, whole)
    write_json(folder / "config.json", said)


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """model.safetensors: half precision where the numbers fit it, single where they do not. Raises ConfigError."""
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    for name, t in tensors.items():
        if t.is_floating_point():
            if not bool(torch.isfinite(t).all()):
                raise ConfigError(f"{name} is not finite after training: lower --learning-rate")
            t = t.to(torch.float16 if t.abs().max().item() < 6e4 else torch.float32)
        out[name] = t.contiguous().clone()
    try:
        save_file(out, folder / "model.safetensors", {"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)  # it is written as its owner's alone
    except OSError as e:
        raise ConfigError(f"{folder} cannot be written ({e.strerror}): choose another --out") from None


def export_model(folder: Path, model: Any, tokenizer: Any, eos: Sequence[int]) -> None:
    """Write a small model as a plain checkpoint in half precision, with the target's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = list(eos) or None
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_json(path: Path, value: Any) -> None:
    """A JSON file, indented."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def expected(alphas: Sequence[float]) -> float:
    """Tokens a pass with as many drafts as there are conditional acceptances: 1 + a1 + a1 a2 + ..."""
    return 1 + sum(math.prod(alphas[: i + 1]) for i in range(len(alphas)))
