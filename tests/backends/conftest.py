"""A tiny pair with one tokenizer, and a stand-in for vLLM (`fake/`) that this Python runs as its worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headstart.backends.vllm import installation
from headstart.backends.vllm.installation import Installation
from tests.tiny import write_llama, write_tokenizer

FAKE = Path(__file__).with_name("fake")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """target, draft; padded and permuted drafts that do not go with the target. Shapes that vLLM's CPU kernels take."""
    root = tmp_path_factory.mktemp("pair")
    out = {}
    for name, options, swap in (
        ("target", {"layers": 2}, None),
        ("draft", {"layers": 1}, None),
        ("padded", {"layers": 1, "pad_rows": 16}, None),
        ("permuted", {"layers": 1}, (200, 201)),
    ):
        folder = root / name
        folder.mkdir()
        size = len(write_tokenizer(folder, swap=swap))
        shape = {"hidden": 128, "heads": 4, "kv_heads": 2, "intermediate": 128, "max_len": 256}
        write_llama(folder, vocab=size, scale=0.15, eos=2, seed=3, dtype=_float32(), **shape, **options)
        out[name] = str(folder)
    return out


def _float32() -> Any:
    import torch

    return torch.float32


@pytest.fixture(scope="module")
def stand_in() -> Iterator[Callable[..., None]]:
    """Make headstart find the stand-in; keyword arguments change what is said of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAKE))

        def found(**changes: Any) -> None:
            made = Installation(**{"python": sys.executable, "vllm": "0.32.0", "torch": "2.9+cpu", **changes})
            patch.setattr(installation, "_inspect", lambda python: made)

        yield found


@pytest.fixture
def fake(stand_in: Callable[..., None]) -> Callable[..., None]:
    """The same, found as it stands at the beginning of each test."""
    stand_in()
    return stand_in
