"""A tiny target with a chat template, and its texts: written once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart import LLM
from tests.tiny import write_llama, write_tokenizer


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    size = len(write_tokenizer(folder).get_vocab())
    write_llama(folder, vocab=size, layers=3, max_len=256, scale=0.2, eos=2, seed=1)
    return folder


@pytest.fixture(scope="session")
def llm(target: Path) -> LLM:
    return LLM(str(target), dtype="float32", kv_cache_memory="64MiB", max_num_seqs=8)
