"""A tiny target with a chat template, and the drafts that the command makes of it: written once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart import LLM
from headstart.cli.main import run
from tests.tiny import write_llama, write_tokenizer

ENOUGH = ("--tokens", "800", "--max-tokens", "24", "--batch", "8", "--dtype", "float32", "--quiet")
QUICK = (*ENOUGH, "--epochs", "4", "--learning-rate", "0.002")


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    size = len(write_tokenizer(folder).get_vocab())
    write_llama(folder, vocab=size, layers=3, max_len=256, scale=0.2, eos=2, seed=1)
    return folder


@pytest.fixture(scope="session")
def llm(target: Path) -> LLM:
    return LLM(str(target), dtype="float32", kv_cache_memory="64MiB", max_num_seqs=8)


@pytest.fixture(scope="session")
def head(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drafts") / "head"
    assert run(["distill", str(target), "--out", str(out), *QUICK, "--draft-vocab", "200"]) == 0
    return out


@pytest.fixture(scope="session")
def small(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drafts") / "small"
    assert run(["distill", str(target), "--out", str(out), *QUICK, "--kind", "model", "--layers", "1"]) == 0
    return out
