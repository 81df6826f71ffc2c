"""Tiny random checkpoints written to a folder, the way a user would have them: safetensors, sharded, GGUF, with a tokenizer.

Weights and files are written by transformers, safetensors and gguf, never by headstart: the tests compare with those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ("the", "Ġthe", "Ġcat", "Ġsat", "Ġon", "Ġmat", "ing", "def", "Ġreturn", "ĠĠĠĠ")
FIRST_WORD = len(SPECIAL) + 256  # ids: special tokens, the 256 bytes, then the words' pieces

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


# Weights


def llama_model(
    *,
    vocab: int = 97,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 64,
    tied: bool = True,
    bias: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    pad_rows: int = 0,
    max_len: int = 128,
    rope: Mapping[str, Any] | None = None,
    scale: float = 0.3,
    eos: int | list[int] | None = 0,
) -> Any:
    """A random transformers LlamaForCausalLM. `scale`: standard deviation of the weights; larger makes bolder laws.

    `pad_rows` further vocabulary rows, that no tokenizer knows, get tempting logits.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab + pad_rows,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate_size=intermediate,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
        max_position_embeddings=max_len,
        rope_parameters=dict(rope or {"rope_type": "default", "rope_theta": 10000.0}),
        bos_token_id=0,
        eos_token_id=eos,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale
            p.copy_(1 + noise if "norm" in name else noise)
        if pad_rows:
            model.get_output_embeddings().weight[vocab:] *= 30
    return model


def write_llama(folder: Path, *, shards: int = 1, **options: Any) -> Any:
    """Save `llama_model(**options)` to a folder as safetensors, in about `shards` files; returns the model."""
    model = llama_model(**options)
    save(folder, model, shards)
    return model


def save(folder: Path, model: Any, shards: int = 1) -> None:
    """Write a model's config and weights."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // shards + 1 if shards > 1 else "1GB")


def logits_of(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] of transformers after each of the tokens."""
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0]


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file; None removes one."""
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


# Tokenizers


def vocabulary(words: Sequence[str] = WORDS) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens by id, and the merges that build `words` from left to right."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet())]
    merges = []
    for word in words:
        for i in range(2, len(word) + 1):
            if word[:i] not in tokens:
                tokens.append(word[:i])
                merges.append((word[: i - 1], word[i - 1]))
    return tokens, merges


def tokenizer(words: Sequence[str] = WORDS, swap: tuple[int, int] | None = None) -> Any:
    """A byte-level BPE tokenizer of some 290 tokens with a chat template. `swap` exchanges the strings of two ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, merges = vocabulary(words)
    if swap is not None:
        a, b = swap
        tokens[a], tokens[b] = tokens[b], tokens[a]
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def write_tokenizer(folder: Path, words: Sequence[str] = WORDS, swap: tuple[int, int] | None = None) -> Any:
    """Save `tokenizer(...)` to a folder; returns it."""
    made = tokenizer(words, swap)
    made.save_pretrained(folder)
    return made


# GGUF

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a transformers parameter."""
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, rest = module.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[rest]}.{kind}"
    return f"{_GGUF_NAMES[module]}.{kind}"


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's converter, LlamaModel.permute: the order of q and k rows in GGUF."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    model: Any,
    kind: str = "F32",
    *,
    words: Sequence[str] = WORDS,
    tokens: bool = True,
    architecture: str = "llama",
    eot: int | None = None,
    pad: bool = False,
    drop: Sequence[str] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    change: Mapping[str, Any] | None = None,
    scaling: tuple[str, float, int] | None = None,
) -> None:
    """Write a transformers Llama as GGUF with matrices of type `kind`, as llama.cpp's converter does.

    `drop` names metadata keys to leave out, `change` sets some, `extra` are further tensors; `scaling` is the kind of rotary scaling, its
    factor and the original context.
    """
    import gguf

    c = model.config
    writer = gguf.GGUFWriter(path, architecture)
    fields = {
        "context_length": (writer.add_context_length, c.max_position_embeddings),
        "embedding_length": (writer.add_embedding_length, c.hidden_size),
        "block_count": (writer.add_block_count, c.num_hidden_layers),
        "feed_forward_length": (writer.add_feed_forward_length, c.intermediate_size),
        "head_count": (writer.add_head_count, c.num_attention_heads),
        "head_count_kv": (writer.add_head_count_kv, c.num_key_value_heads),
        "key_length": (writer.add_key_length, c.head_dim),
        "value_length": (writer.add_value_length, c.head_dim),
        "rms_eps": (writer.add_layer_norm_rms_eps, c.rms_norm_eps),
        "rope_freq_base": (writer.add_rope_freq_base, c.rope_parameters["rope_theta"]),
        "rope_dimension_count": (writer.add_rope_dimension_count, c.head_dim),
        "vocab_size": (writer.add_vocab_size, c.vocab_size),
    }
    if tokens:
        strings, merges = vocabulary(words)
        types = [gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in strings]
        padding = max(0, c.vocab_size - len(strings)) if pad else 0  # as llama.cpp's converter fills a padded vocabulary
        strings = strings + [f"[PAD{i}]" for i in range(padding)]
        types += [gguf.TokenType.UNUSED] * padding
        fields |= {
            "tokenizer_model": (writer.add_tokenizer_model, "gpt2"),
            "tokenizer_pre": (writer.add_tokenizer_pre, "smollm"),
            "token_list": (writer.add_token_list, strings),
            "token_types": (writer.add_token_types, types),
            "token_merges": (writer.add_token_merges, [" ".join(m) for m in merges]),
            "bos": (writer.add_bos_token_id, 0),
            "eos": (writer.add_eos_token_id, 2),
            "chat_template": (writer.add_chat_template, CHAT_TEMPLATE),
        }
        if eot is not None:
            fields["eot"] = (writer.add_eot_token_id, eot)
    for name, (add, value) in fields.items():
        if name not in drop:
            add((change or {}).get(name, value))
    if scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling[0]))
        writer.add_rope_scaling_factor(scaling[1])
        writer.add_rope_scaling_orig_ctx_len(scaling[2])
    for name, array, stored in gguf_tensors(model, kind):
        writer.add_tensor(name, array, raw_dtype=stored)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: Any, kind: str) -> list[tuple[str, np.ndarray, Any]]:
    """(name, stored array, type) of every parameter; vectors stay F32 as in real files."""
    import gguf

    out = []
    for name, p in model.named_parameters():
        array = p.detach().float().numpy()
        for block, heads in (("q_proj", model.config.num_attention_heads), ("k_proj", model.config.num_key_value_heads)):
            if block in name:
                array = _interleave(array, heads)
        stored = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        out.append((gguf_name(name), gguf.quants.quantize(np.ascontiguousarray(array), stored), stored))
    return out


def through_gguf_type(model: Any, kind: str) -> None:
    """Replace each matrix by what is left of it after storing it as `kind`; quantising works within a row, so no reordering."""
    import gguf

    stored = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(p.float().numpy(), stored), stored)))
