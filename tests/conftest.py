"""headstart comes before torch, as it should in a program; and one thread for torch, since waking a second one costs such small models
more than their work."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import headstart  # noqa: F401 - says how torch's threads wait

with contextlib.suppress(ImportError):  # tests/core run without torch
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gemma_file() -> Path:
    """Gemma 3 270M: $HEADSTART_TEST_GEMMA, or the file in the cache folder (docs/models.md). Never fetched by a test."""
    from headstart.core.folders import cache_folder

    path = Path(os.environ.get("HEADSTART_TEST_GEMMA") or cache_folder() / "gemma-3-270m-q4_k_m.gguf")
    if not path.is_file():
        pytest.skip("no Gemma checkpoint: set HEADSTART_TEST_GEMMA, or put it into the cache folder as docs/models.md says")
    return path


@pytest.fixture(scope="session")
def real_file() -> Path:
    """The demo checkpoint: $HEADSTART_TEST_GGUF, or what `headstart demo` left in the cache. Never fetched by a test."""
    from headstart.core.folders import cache_folder
    from headstart.models.demo import MEMBER

    path = Path(os.environ.get("HEADSTART_TEST_GGUF") or cache_folder() / Path(MEMBER).name)
    if not path.is_file():
        pytest.skip("no demo checkpoint: set HEADSTART_TEST_GGUF, or run `headstart demo` once")
    return path


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    """The paths avx512 and amx, built for a processor that has only AVX2 (tests/kernels/emulated.py): once per session."""
    from headstart.kernels import library
    from tests.kernels.emulated import build

    handle, lack = library._load()
    if handle is None or handle.headstart_lack(library.PATHS.index("avx2")):
        pytest.skip(lack or "this processor has no AVX2")
    base = tmp_path_factory.getbasetemp()
    return build(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(params=("avx2", "avx512", "amx"))
def path(request, monkeypatch):
    """Each path of the kernels serves: on this processor where it can, else emulated; skipped where there is no AVX2."""
    from headstart.kernels import library

    handle, _ = library._load()
    if handle is None or handle.headstart_lack(library.PATHS.index(request.param)):
        choose, load = request.getfixturevalue("emulated")
        monkeypatch.setattr(library, "_choose", choose)
        monkeypatch.setattr(library, "_load", load)
    monkeypatch.setenv(library.VARIABLE, request.param)
    return request.param
