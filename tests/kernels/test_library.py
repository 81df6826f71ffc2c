"""Which path serves: the best, the one asked for, or torch with a word why."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from headstart.core.errors import ConfigError
from headstart.kernels import library, packing
from tests.kernels.test_products import needs_kernels

NAMES = ("Matrix", "Layer", "Model", "Span", "Pass", "Logits", "Filters", "Race", "Choice", "Trial", "Verdict")
STRUCTURES = [getattr(library, n) for n in NAMES]


@pytest.fixture
def ask(monkeypatch):
    """Choose anew, as a fresh process would."""

    def choose(value: str | None) -> library.Active:
        library._choose.cache_clear()
        if value is None:
            monkeypatch.delenv(library.VARIABLE, raising=False)
        else:
            monkeypatch.setenv(library.VARIABLE, value)
        return library.active()

    yield choose
    library._choose.cache_clear()


@pytest.fixture
def ask_with_all(ask, emulated, monkeypatch):
    """The same on a processor that has avx512 and amx, emulated here, and no other."""
    monkeypatch.setattr(library, "_load", emulated[1])
    return ask


class Lacking:
    """A library whose paths lack what is said, by their names."""

    def __init__(self, handle, **lacks):
        self.handle, self.lacks = handle, lacks

    def __getattr__(self, name):
        return getattr(self.handle, name)

    def headstart_lack(self, number):
        return self.lacks.get(library.PATHS[number], 0)


def break_products(monkeypatch, *names: str) -> None:
    """Wrong int4 products on these paths."""
    true = packing.Packed.product
    wrong = lambda self, by, x: true(self, by, x) + (by.path in names and self.codes.dtype is torch.uint8)  # noqa: E731
    monkeypatch.setattr(packing.Packed, "product", wrong)


def test_torch_can_be_asked_for(ask):
    assert (ask("torch").path, ask("torch").handle) == ("torch", None) and library.VARIABLE in ask("torch").why


@needs_kernels
def test_the_best_serves(ask):
    had = [p for i, p in enumerate(library.PATHS) if i and library._load()[0].headstart_lack(i) != library._PROCESSOR]
    assert ask(None).path == ask("").path == (had or ["torch"])[-1]


def test_the_best_of_all_serves(ask_with_all):
    assert ask_with_all(None).path == "amx"
    assert [ask_with_all(p).path for p in ("avx512", "amx")] == ["avx512", "amx"]
    with pytest.raises(ConfigError, match="no AVX2"):
        ask_with_all("avx2")


@pytest.mark.parametrize("value", ["avx", "AVX2", "sse", " ", "AMX"])
def test_unknown_paths(ask, value):
    with pytest.raises(ConfigError, match=library.VARIABLE):
        ask(value)


@needs_kernels
@pytest.mark.parametrize("path", library.PATHS[1:])
def test_a_path_that_this_processor_lacks(ask, monkeypatch, path):
    handle = Lacking(library._load()[0], avx2=1, avx512=1, amx=1)
    monkeypatch.setattr(library, "_load", lambda: (handle, ""))
    with pytest.raises(ConfigError, match=f"{path} cannot be had: this processor has no {library.NEEDS[path][:4]}"):
        ask(path)
    assert ask(None) == library.Active("torch", "this processor has no AVX2 with FMA and F16C")


def test_a_path_that_the_compiler_did_not_know(ask_with_all, emulated, monkeypatch):
    handle = Lacking(emulated[1]()[0], avx2=1, amx=2)
    monkeypatch.setattr(library, "_load", lambda: (handle, ""))
    assert ask_with_all(None).path == "avx512" and "amx kernels were not built" in ask_with_all(None).why
    with pytest.raises(ConfigError, match="newer C"):
        ask_with_all("amx")


def test_not_built(ask, monkeypatch):
    monkeypatch.setattr(library, "_load", lambda: (None, "the kernels were not built"))
    assert ask(None) == library.Active("torch", "the kernels were not built")
    with pytest.raises(ConfigError, match="not built"):
        ask("avx2")


@needs_kernels
def test_wrong_products_are_not_used(ask, monkeypatch):
    """A path that does not agree with torch here is never chosen by itself, and refused when it is asked for."""
    break_products(monkeypatch, *library.PATHS)
    assert ask(None).path == "torch" and "int4" in ask(None).why
    with pytest.raises(ConfigError, match="cannot be had"):
        ask("avx2")


def test_the_next_path_serves_where_one_is_wrong(ask_with_all, monkeypatch):
    break_products(monkeypatch, "amx")
    serves = ask_with_all(None)
    assert serves.path == "avx512" and "amx kernels compute wrong int4" in serves.why and "avx512 serves" in serves.why
    with pytest.raises(ConfigError, match="amx kernels compute wrong int4"):
        ask_with_all("amx")


def test_amx_is_held_to_what_bf16_rows_give(emulated, monkeypatch):
    """Rows that are rounded otherwise, such as to the next bf16 below, are a fault; so are rows that feel their neighbours."""
    amx, true = library.Active("amx", "", emulated[1]()[0]), packing.Packed.product
    assert packing.disagreement(amx) == ""
    cut = lambda x: (x.view(torch.int32) & -65536).view(torch.float32)  # noqa: E731
    of_bf16 = lambda self, by, x: true(self, by, cut(x) if self.codes.dtype is torch.bfloat16 else x)  # noqa: E731
    monkeypatch.setattr(packing.Packed, "product", of_bf16)
    assert "wrong bfloat16" in packing.disagreement(amx)
    monkeypatch.setattr(packing.Packed, "product", lambda self, by, x: true(self, by, x) + (len(x) > 1) * 1e-4)
    assert "alone" in packing.disagreement(amx)


@needs_kernels
def test_the_structures_are_those_of_the_library():
    """ctypes and the compiler lay them out alike."""
    handle, _ = library._load()
    for i, kind in enumerate(STRUCTURES):
        assert handle.headstart_size(i) == ctypes.sizeof(kind), kind


@needs_kernels
def test_a_forked_child_has_threads_of_its_own():
    code = """
import os, torch
from headstart.kernels.packing import pack_floats
torch.set_num_threads(2)
packed, x = pack_floats(torch.ones(200, 64)), torch.ones(3, 64)
assert float(packed(x).sum()) == 200 * 64 * 3
child = os.fork()
if child == 0:
    os._exit(0 if float(packed(x).sum()) == 200 * 64 * 3 else 1)
assert os.waitpid(child, 0)[1] == 0
assert float(packed(x).sum()) == 200 * 64 * 3
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ, library.VARIABLE: ""})
