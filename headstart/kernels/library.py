"""The compiled library: found, checked and chosen once per process.

$HEADSTART_KERNELS names a path: amx, avx512, avx2, or torch for none; unset takes the best that this processor has. A path is used only
after its products have been right here; else the next one is tried.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headstart.core.errors import ConfigError, first_line, nearest

VARIABLE = "HEADSTART_KERNELS"
PATHS = ("torch", "avx2", "avx512", "amx")  # from worst to best; the place of a path is its number in the library
NEEDS = {
    "avx2": "AVX2 with FMA and F16C",
    "avx512": "AVX-512 (F, BW, DQ and VL)",
    "amx": "AMX with bf16, or its system does not give programs its tiles",
}
_PROCESSOR, _COMPILER = 1, 2  # what a path may lack


class Matrix(ctypes.Structure):
    """src/abi.hpp: Matrix."""

    _fields_ = (
        *((name, c_int32) for name in ("kind", "rows", "inputs", "columns", "groups")),
        *((name, c_void_p) for name in ("codes", "scale", "minimum", "bias")),
    )


class Layer(ctypes.Structure):
    """src/abi.hpp: Layer."""

    _fields_ = (
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("input_norm", "mlp_norm")),
    )


class Model(ctypes.Structure):
    """src/abi.hpp: Model."""

    _fields_ = (
        *((name, c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "kv_kind")),
        *((name, c_float) for name in ("eps", "scale")),
        ("layer", POINTER(Layer)),
        *((name, Matrix) for name in ("embedding", "head")),
        *((name, c_void_p) for name in ("norm", "inv_freq", "embed_norm", "state_norm")),
        ("keeps_normed", c_int32),
    )


class Span(ctypes.Structure):
    """src/abi.hpp: Span."""

    _fields_ = (*((name, c_int64) for name in ("first_row", "rows", "length", "base")), ("slots", c_void_p))


class Pass(ctypes.Structure):
    """src/abi.hpp: Pass."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "spans", "logit_rows")),
        *((name, c_void_p) for name in ("tokens", "positions", "slots")),
        ("span", POINTER(Span)),
        ("wanted", c_void_p),
        *((name, POINTER(c_void_p)) for name in ("keys", "values")),
        *((name, c_void_p) for name in ("logits", "given")),
        ("taps", c_int64),
        *((name, c_void_p) for name in ("tapped", "states")),
    )


class Logits(ctypes.Structure):
    """src/abi.hpp: Logits."""

    _fields_ = (*((name, c_int64) for name in ("rows", "size", "stride")), ("at", c_void_p))


class Filters(ctypes.Structure):
    """src/abi.hpp: Filters."""

    _fields_ = (*((name, c_double) for name in ("temperature", "min_p", "top_p")), ("top_k", c_int64))


class Race(ctypes.Structure):
    """src/abi.hpp: Race."""

    _fields_ = (("size", c_int64), ("key", c_uint64), ("law", c_void_p), ("names", c_void_p))


class Choice(ctypes.Structure):
    """src/abi.hpp: Choice."""

    _fields_ = (("size", c_int64), ("logits", c_void_p), ("key", c_uint64), ("filters", Filters))


class Trial(ctypes.Structure):
    """src/abi.hpp: Trial."""

    _fields_ = (
        *((name, c_int64) for name in ("drafts", "size", "stride", "law_stride")),
        *((name, c_void_p) for name in ("logits", "laws")),
        ("tokens", POINTER(c_int64)),
        ("uniforms", POINTER(c_double)),
        ("filters", Filters),
        *((name, c_int32) for name in ("block", "checked")),
    )


class Verdict(ctypes.Structure):
    """src/abi.hpp: Verdict."""

    _fields_ = (("accepted", c_int64), ("tail", c_int64))


@dataclass(frozen=True)
class Active:
    """The path that serves: one of `PATHS`, and in words why it is this one."""

    path: str
    why: str
    handle: Any = None

    @property
    def built(self) -> int:
        """Which build of the library it is: what was measured of another one does not hold."""
        return 0 if self.handle is None else Path(self.handle._name).stat().st_mtime_ns

    def call(self, function: str, *arguments: Any) -> None:
        """Run a function of the library on torch's number of threads. Raises MemoryError."""
        if getattr(self.handle, f"headstart_{function}")(PATHS.index(self.path), torch.get_num_threads(), *arguments):
            raise MemoryError("there is no memory for the activations of this pass: lower max_num_batched_tokens")


def active() -> Active:
    """What serves in this process. Raises ConfigError when $HEADSTART_KERNELS names what cannot serve."""
    return _choose(os.environ.get(VARIABLE, ""))


@functools.cache
def _choose(asked: str) -> Active:
    if asked and asked not in PATHS:
        raise ConfigError(f"{VARIABLE}={asked!r} is not a path: {nearest(asked, PATHS)}")
    if asked == "torch":
        return Active("torch", f"{VARIABLE}=torch asks for it")
    handle, lack = _load()
    if handle is None:
        if asked:
            raise ConfigError(f"{VARIABLE}={asked} cannot be had: {lack}")
        return Active("torch", lack)
    if asked:
        if fault := _fault(handle, asked):
            raise ConfigError(f"{VARIABLE}={asked} cannot be had: {fault}")
        return Active(asked, f"{VARIABLE}={asked} asks for it", handle)
    faults: list[str] = []  # of paths that this processor has
    for path in reversed(PATHS[1:]):
        fault = _fault(handle, path)
        if not fault:
            return Active(path, "; ".join((*faults, f"so {path} serves")) if faults else "the best that this processor has", handle)
        if handle.headstart_lack(PATHS.index(path)) != _PROCESSOR:
            faults.append(fault)
    return Active("torch", "; ".join(faults) or fault)


def _fault(handle: Any, path: str) -> str:
    """In words, why a path cannot serve; empty when it can."""
    from headstart.kernels.packing import disagreement

    lack = handle.headstart_lack(PATHS.index(path))
    if lack == _PROCESSOR:
        return f"this processor has no {NEEDS[path]}"
    if lack == _COMPILER:
        return f"the {path} kernels were not built: install a newer C++ compiler (g++ 11 knows all), then headstart again"
    return disagreement(Active(path, "", handle))


@functools.cache
def _load() -> tuple[Any, str]:
    """(the library, "") or (None, why there is none)."""
    files = sorted(Path(__file__).parent.glob("_kernels*.so"))
    if not files:
        return None, "the kernels were not built: install a C++ compiler (g++), then headstart again"
    try:
        return _open(files[0]), ""
    except (OSError, AttributeError) as e:
        return None, f"the kernels do not load ({first_line(e)}): install headstart again"


def _open(file: Path) -> Any:
    handle = ctypes.CDLL(str(file))
    handle.headstart_lack.argtypes = [c_int]
    handle.headstart_decode.argtypes = [c_int, c_int, POINTER(Model), POINTER(Pass)]
    handle.headstart_product.argtypes = [c_int, c_int, POINTER(Matrix), c_void_p, c_int64, c_void_p]
    handle.headstart_read.argtypes = [c_int, c_int, c_char_p, c_int64]
    handle.headstart_law.argtypes = [c_int, c_int, POINTER(Logits), POINTER(Filters), c_void_p]
    handle.headstart_race.argtypes = [c_int, c_int, POINTER(Race), POINTER(c_int64)]
    handle.headstart_choose.argtypes = [c_int, c_int, POINTER(Choice), c_int64, POINTER(c_int64)]
    handle.headstart_judge.argtypes = [c_int, c_int, POINTER(Trial), c_int64, POINTER(Verdict)]
    return handle
