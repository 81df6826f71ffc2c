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

from headstart.core.errors import ModelError
from headstart.models.gguf_config import NAMES, ROPE_TENSORS, architecture_of, read_config
from headstart.models.gguf_reader import Stored, read_header
from headstart.ops.quant import BLOCKS, Quantised, from_blocks

# Bytes dequantised at a time: the library's temporaries are several times as large, and fastest while they fit into the cache.
_CHUNK_BYTES = 256 << 10


class GGUFFile:
    """The metadata of a GGUF file and where its tensors lie. `config` and `tensor` speak Hugging Face's names.

    Raises ModelError on a broken file.
    """

    def __init__(self, path: Path) -> None:
        self._fields, tensors = read_header(path)
        self.path = path
        self.architecture = self.field("general.architecture")
        self._kind = architecture_of(self.architecture, path.name)
        self._rope = {name: tensors.pop(name) for name in ROPE_TENSORS if name in tensors}
        self._tensors = {self._hf_name(name): stored for name, stored in tensors.items()}
        self.quantisation = ", ".join(sorted({t.kind.name for t in self._tensors.values()}))

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, or the default."""
        return self._fields.get(name, default)

    def names(self) -> list[str]:
        return list(self._tensors)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, in numbers."""
        return {name: stored.numbers for name, stored in self._tensors.items()}

    def config(self) -> dict[str, Any]:
        """The model's config as a config.json would hold it."""
        get = lambda key, default=None: self.field(f"{self.architecture}.{key}", default)  # noqa: E731
        factors = {name: self._numbers(stored).tolist() for name, stored in self._rope.items()}
        vocab = len(self.field("tokenizer.ggml.tokens", ())) or get("vocab_size")
        return {"vocab_size": vocab, **read_config(self._kind, get, set(self._tensors), factors, self.path.name)}

    def eos_ids(self) -> list[int]:
        """Every id that ends a turn, from the tokenizer's metadata; -1 stands for none."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = [self.field(f"tokenizer.ggml.{k}") for k in keys]
        return list(dict.fromkeys(i for i in found if i not in (None, -1, 0xFFFFFFFF)))

    @property
    def coarse(self) -> bool:
        """Whether every matrix is stored in fewer than 16 bits, or in bfloat16."""
        return all(t.kind.name not in ("F64", "F32", "F16") for t in self._tensors.values() if len(t.shape) > 1)

    def tensor(self, name: str) -> Tensor:
        """A tensor in fp32, dequantised, rows in Hugging Face's order."""
        from gguf import dequantize

        if name not in self._tensors:
            raise ModelError(f"{self.path} has no tensor {name!r}")
        stored = self._tensors[name]
        shape = stored.shape
        if len(shape) == 1:
            values = self._numbers(stored)
            return values - 1 if self._kind.unit_norms and name.endswith("norm.weight") else values
        raw, matrix = self._rows(name, stored), torch.empty(stored.numbers)
        step, out = max(1, _CHUNK_BYTES // raw[0].nbytes), matrix.numpy()
        for i in range(0, shape[0], step):
            # As one row: the library would go through many rows by sixteen at a time.
            out[i : i + step] = dequantize(raw[i : i + step].reshape(1, -1), stored.kind).reshape(-1, out.shape[1])
        return matrix

    def blocks(self, name: str, quantization: str) -> Quantised | None:
        """A matrix as it is stored, rows in Hugging Face's order; None where it is stored as something else than `quantization`."""
        if name not in self._tensors:
            raise ModelError(f"{self.path} has no tensor {name!r}")
        stored = self._tensors[name]
        if BLOCKS.get(stored.kind.name) != quantization:
            return None
        return from_blocks(torch.from_numpy(self._rows(name, stored)), stored.kind.name)

    def _rows(self, name: str, stored: Stored) -> Any:
        """The rows of a matrix as they are stored, in Hugging Face's order."""
        raw, order = self._bytes(stored), self._half_split(name, stored.shape[0])
        return raw if order is None else raw[order]

    def _bytes(self, stored: Stored) -> Any:
        """A tensor as it is stored: pages of the file, which nobody changes (and numpy lets torch see only what could be changed)."""
        return np.memmap(self.path, stored.dtype, "c", stored.offset, stored.shape)

    def _numbers(self, stored: Stored) -> Tensor:
        """A vector in fp32."""
        from gguf import dequantize

        return torch.from_numpy(dequantize(self._bytes(stored), stored.kind).astype(np.float32))

    def _half_split(self, name: str, rows: int) -> Any:
        """The order that undoes GGUF's for rows of q and k: pairs (2i, 2i + 1) rotate there, (i, i + d/2) in Hugging Face's layout."""
        if not self._kind.interleaved:
            return None
        heads = self.field(f"{self.architecture}.attention.head_count")
        for block, count in (("q_proj", heads), ("k_proj", self.field(f"{self.architecture}.attention.head_count_kv", heads))):
            if f"{block}.weight" in name:
                return np.arange(rows).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)
        return None

    def _hf_name(self, name: str) -> str:
        if block := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
            return f"model.layers.{block[1]}.{self._kind.blocks.get(block[2], block[2])}.{block[3]}"
        return NAMES.get(name, name)

    def tokenizer(self) -> Any:
        """The tokenizer and chat template of the file as a transformers tokenizer."""
        from headstart.models.gguf_tokenizer import build

        return build(self)
