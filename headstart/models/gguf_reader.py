"""The header of a GGUF file: its metadata, and where each tensor lies (specification: ggml-org/ggml, docs/gguf.md).

The gguf library has a reader, but it makes several arrays for each string: of a vocabulary of 262,144 tokens it takes ten seconds
where this takes a third of one. What the types of tensors are, and their numbers, remains the library's knowledge.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headstart.core.errors import ModelError, first_line

_VERSIONS = (2, 3)
_NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}  # value types
_STRING, _ARRAY = 8, 9
_PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64}  # types of tensors that are stored as arrays of numbers


class Stored(NamedTuple):
    """A tensor in the file: its type in the library's words, its bytes as an array, and how many numbers they are."""

    kind: Any
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    numbers: tuple[int, ...]


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Metadata by key, and tensors by name in the file's own order. Raises ModelError on a broken or foreign file."""
    try:
        with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).read()
    except (OSError, ValueError, KeyError, struct.error) as e:
        raise ModelError(f"{path} is not a readable GGUF file ({type(e).__name__}: {first_line(e)})") from None


class _Header:
    """A cursor over the file; whatever points beyond its end raises ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def read(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := self._number("u4")) not in _VERSIONS:
            raise ValueError(f"its version is {version}, known are {_VERSIONS}")
        tensors, fields = self._count(24), self._count(12)
        metadata = {self._string(): self._value(self._number("u4")) for _ in range(fields)}
        infos = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self.at // alignment) * alignment
        return metadata, {name: self._placed(kind, dims, start + offset) for name, kind, dims, offset in infos}

    def _tensor(self) -> tuple[str, int, list[int], int]:
        name, rank = self._string(), self._number("u4")
        if not 1 <= rank <= 4:
            raise ValueError(f"tensor {name!r} has {rank} dimensions")
        dims = [self._number("u8") for _ in range(rank)]
        return name, self._number("u4"), dims[::-1], self._number("u8")

    def _placed(self, kind: int, dims: list[int], offset: int) -> Stored:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        known = GGMLQuantizationType(kind)
        count, size = GGML_QUANT_SIZES[known]
        if dims[-1] % count:
            raise ValueError(f"rows of {dims[-1]} numbers are not whole blocks of {known.name}")
        dtype = np.dtype(_PLAIN.get(known.name, np.uint8))
        shape = (*dims[:-1], dims[-1] // count * size // dtype.itemsize)
        if offset + int(np.prod(shape, dtype=object)) * dtype.itemsize > len(self.data):
            raise ValueError("it ends before its tensors do")
        return Stored(known, shape, dtype, offset, tuple(dims))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_NUMBERS[kind])
        inner = self._number("u4")
        if inner == _STRING:
            return self._strings(self._count(8))
        if inner == _ARRAY:
            return [self._value(_ARRAY) for _ in range(self._count(12))]
        dtype = np.dtype("<" + _NUMBERS[inner])
        count = self._count(dtype.itemsize)
        return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()

    def _strings(self, count: int) -> list[str]:
        """The loop of a vocabulary: kept tight."""
        out, data, at = [], self.data, self.at
        unpack: Callable[..., Any] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            end = at + 8 + unpack(data, at)[0]
            if end > len(data):
                raise ValueError("a string ends behind the file")
            out.append(data[at + 8 : end].decode())
            at = end
        self.at = at
        return out

    def _string(self) -> str:
        return self._take(self._number("u8")).decode()

    def _number(self, dtype: str) -> Any:
        size = np.dtype(dtype).itemsize
        return np.frombuffer(self._take(size), "<" + dtype)[0].item()

    def _count(self, size: int) -> int:
        """A number of things of at least `size` bytes each, which the rest of the file can hold."""
        count = self._number("u8")
        if count * size > len(self.data) - self.at:
            raise ValueError(f"it says it holds {count} of something, which it cannot")
        return count

    def _take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError("it is cut short")
        self.at += count
        return self.data[self.at - count : self.at]
