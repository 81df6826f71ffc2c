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
from tests.kernels.test_products import needs_kernels, paths

STRUCTURES = [getattr(library, n) for n in ("Matrix", "Layer", "Model", "Span", "Pass", "Logits", "Filters", "Race", "Choice")]


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


def test_torch_can_be_asked_for(ask):
    assert (ask("torch").path, ask("torch").handle) == ("torch", None) and library.VARIABLE in ask("torch").why


@needs_kernels
def test_the_best_serves(ask):
    assert ask(None).path == ask("").path == paths()[-1]


@pytest.mark.parametrize("value", ["avx", "AVX2", "sse", " "])
def test_unknown_paths(ask, value):
    with pytest.raises(ConfigError, match=library.VARIABLE):
        ask(value)


@needs_kernels
def test_a_path_that_this_processor_lacks(ask, monkeypatch):
    monkeypatch.setattr(library._load()[0], "headstart_best", lambda: 0)
    with pytest.raises(ConfigError, match="avx2"):
        ask("avx2")
    assert ask(None).path == "torch"


def test_not_built(ask, monkeypatch):
    monkeypatch.setattr(library, "_load", lambda: (None, "the kernels were not built"))
    assert ask(None) == library.Active("torch", "the kernels were not built")
    with pytest.raises(ConfigError, match="not built"):
        ask("avx2")


@needs_kernels
def test_wrong_products_are_not_used(ask, monkeypatch):
    """A path that does not agree with torch here is never chosen by itself, and refused when it is asked for."""
    true = packing.Packed.product
    monkeypatch.setattr(packing.Packed, "product", lambda self, by, x: true(self, by, x) + (self.codes.dtype is torch.uint8))
    assert ask(None).path == "torch" and "int4" in ask(None).why
    with pytest.raises(ConfigError, match="int4"):
        ask("avx2")


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
