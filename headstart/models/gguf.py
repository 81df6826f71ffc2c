"""GGUF files: metadata to a config in Hugging Face's names, tensors dequantised on demand, and the tokenizer inside.

Reading and dequantising is the gguf library's work; this file knows the names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.core.errors import ModelError, first_line
from headstart.ops.quant import BLOCKS, Quantised, from_blocks

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_REQUIRED = (
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "context_length",
)

# Bytes dequantised at a time: the library's temporaries are several times as large.
_CHUNK_BYTES = 4 << 20


def _read(path: Path) -> tuple[Any, dict[str, Any]]:
    """The library's reader of a file, and the values of its metadata."""
    import gguf

    class Reader(gguf.GGUFReader):
        """The library's reader on a plain array: slices of a numpy.memmap cost several times the time and memory."""

        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, value: Any) -> None:
            self._plain = np.asarray(value)

    try:
        reader = Reader(path)
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as e:  # the library raises many kinds on truncated or foreign files
        raise ModelError(f"{path} is not a readable GGUF file ({type(e).__name__}: {first_line(e)})") from None


class GGUFFile:
    """The metadata of a GGUF file and where its tensors lie. `config` and `tensor` speak Hugging Face's names.

    Raises ModelError on a broken file.
    """

    def __init__(self, path: Path) -> None:
        reader, self._fields = _read(path)
        self.path = path
        # Where each tensor lies: its type, the shape of its stored bytes, and their place. The file is not kept mapped.
        self._tensors = {_hf_name(t.name): (t.tensor_type, t.data.shape, t.data.dtype, int(t.data_offset)) for t in reader.tensors}
        self.architecture = self.field("general.architecture")
        self.quantisation = ", ".join(sorted({kind.name for kind, *_ in self._tensors.values()}))

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, or the default."""
        return self._fields.get(name, default)

    def names(self) -> list[str]:
        return list(self._tensors)

    def config(self) -> dict[str, Any]:
        """The model's config as a config.json would hold it."""
        arch = self.architecture
        if arch != "llama":
            raise ModelError(f"{self.path.name}: GGUF architecture {arch!r} is not supported yet; supported: llama")
        get = lambda key, default=None: self.field(f"{arch}.{key}", default)  # noqa: E731
        for key in _REQUIRED:
            if get(key) is None:
                raise ModelError(f"{self.path.name} has no metadata {arch}.{key}: it is not complete, fetch it again")
        scaling = get("rope.scaling.type")
        if scaling not in (None, "none") or "rope_freqs.weight" in self._tensors:
            raise ModelError(f"{self.path.name}: scaled rotary embedding in GGUF is not supported yet; use the safetensors checkpoint")
        return {
            "model_type": "llama",
            "vocab_size": len(self.field("tokenizer.ggml.tokens", ())) or get("vocab_size"),
            "hidden_size": get("embedding_length"),
            "intermediate_size": get("feed_forward_length"),
            "num_hidden_layers": get("block_count"),
            "num_attention_heads": get("attention.head_count"),
            "num_key_value_heads": get("attention.head_count_kv", get("attention.head_count")),
            "head_dim": get("attention.key_length"),
            "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": get("context_length"),
            "rope_theta": get("rope.freq_base", 10000.0),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
        }

    def eos_ids(self) -> list[int]:
        """Every id that ends a turn, from the tokenizer's metadata."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        return list(dict.fromkeys(i for k in keys if (i := self.field(f"tokenizer.ggml.{k}")) is not None))

    def tensor(self, name: str) -> Tensor:
        """A tensor in fp32, dequantised, rows in Hugging Face's order."""
        from gguf import dequantize

        kind, raw = self._raw(name)
        shape = raw.shape
        if len(shape) == 1:
            return torch.from_numpy(dequantize(raw, kind).astype(np.float32))
        step = max(1, _CHUNK_BYTES // raw[0].nbytes)
        parts = (torch.from_numpy(dequantize(raw[i : i + step], kind).astype(np.float32, copy=False)) for i in range(0, shape[0], step))
        first = next(parts)
        values = torch.empty(shape[0], first.shape[1])
        values[:step] = first
        for i, part in enumerate(parts, 1):
            values[i * step : (i + 1) * step] = part
        order = self._half_split(name, shape[0])
        return values if order is None else values[order]

    def blocks(self, name: str, quantization: str) -> Quantised | None:
        """A matrix as it is stored, rows in Hugging Face's order; None where it is stored as something else than `quantization`."""
        if name in self._tensors and BLOCKS.get(self._tensors[name][0].name) != quantization:
            return None
        kind, raw = self._raw(name)
        weight, order = from_blocks(torch.from_numpy(raw), kind.name), self._half_split(name, len(raw))
        return weight if order is None else weight.rows(order)

    def _raw(self, name: str) -> tuple[Any, Any]:
        """The type of a tensor, and its bytes as an array of the stored shape."""
        if name not in self._tensors:
            raise ModelError(f"{self.path} has no tensor {name!r}")
        kind, shape, stored, offset = self._tensors[name]
        return kind, np.fromfile(self.path, dtype=stored, count=int(np.prod(shape)), offset=offset).reshape(shape)

    def _half_split(self, name: str, rows: int) -> Tensor | None:
        """The order that undoes GGUF's for rows of q and k: pairs (2i, 2i + 1) rotate there, (i, i + d/2) in Hugging Face's layout."""
        heads = self.field(f"{self.architecture}.attention.head_count")
        for block, count in (("q_proj", heads), ("k_proj", self.field(f"{self.architecture}.attention.head_count_kv", heads))):
            if f"{block}.weight" in name:
                return torch.arange(rows).view(count, -1, 2).transpose(1, 2).reshape(-1)
        return None

    def tokenizer(self) -> Any:
        """The tokenizer and chat template of the file as a transformers tokenizer."""
        from headstart.models.gguf_tokenizer import build

        return build(self)


def _hf_name(name: str) -> str:
    if block := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        return f"model.layers.{block[1]}.{_BLOCK_NAMES.get(block[2], block[2])}.{block[3]}"
    return _NAMES.get(name, name)
