"""One thread for torch: the models here are so small that waking a second one costs more than the work."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):  # tests/core run without torch
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_file() -> Path:
    """The demo checkpoint: $HEADSTART_TEST_GGUF, or what `headstart demo` left in the cache. Never fetched by a test."""
    from headstart.models.demo import MEMBER, cache_folder

    path = Path(os.environ.get("HEADSTART_TEST_GGUF") or cache_folder() / Path(MEMBER).name)
    if not path.is_file():
        pytest.skip("no demo checkpoint: set HEADSTART_TEST_GGUF, or run `headstart demo` once")
    return path
