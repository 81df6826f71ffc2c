"""Our lookup behind vLLM's proposer interface: rows come, move and go, and every row gets the drafts that its text alone gets."""

from __future__ import annotations

import random
from types import SimpleNamespace as Box
from typing import Any

import numpy as np
import pytest

from headstart import draft
from headstart.backends.vllm import proposer as proposer_module
from headstart.backends.vllm.proposer import LookupProposer
from headstart.core.params import SamplingParams
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import Drafter, LookupDrafter

LIMIT = 64


class Liar(LookupDrafter):
    """Drafts ids that do not exist, and too many of them."""

    def __init__(self, spec: Any, context: Any) -> None:
        pass

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        return [10**6] * (k + 5)


def no_lookup(spec: Any, context: Any) -> Drafter:
    return Drafter()


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's is not here."""
    monkeypatch.setattr(proposer_module, "_tokenizer", lambda model: None)


def make(**spec: Any) -> LookupProposer:
    model = Box(get_vocab_size=lambda: 50, dtype=None, max_model_len=LIMIT)
    config = {"num_speculative_tokens": 3, **spec}
    scheduler = Box(max_num_batched_tokens=64)
    return LookupProposer(Box(additional_config={"headstart": config}, model_config=model, scheduler_config=scheduler))


def alone(tokens: list[int], k: int) -> list[int]:
    spec = SpeculativeConfig(method="suffix", num_speculative_tokens=3)
    drafter = draft.build(spec, None)  # type: ignore[arg-type]
    seq = Sequence(0, "0", 0, SamplingParams(), list(tokens), 1, 0)
    return drafter.propose([Chunk(seq, len(tokens), k)])[0].tokens


def test_rows_that_come_move_and_go() -> None:
    """500 random steps of a batch: requests start (some with equal texts), read their prompts in parts, grow, swap rows and end."""
    rng = random.Random(7)
    proposer = make(method="suffix")
    board = np.zeros((8, LIMIT), dtype=np.int32)
    rows: list[list[int]] = []
    drafted = 0
    for _ in range(500):
        if len(rows) < 6 and rng.random() < 0.4:
            rows.append(list(rows[0]) if rows and rng.random() < 0.3 else [rng.randrange(3) for _ in range(rng.randint(2, 12))])
        if rows and rng.random() < 0.2:
            rows.pop(rng.randrange(len(rows)))
        if rng.random() < 0.2:
            rng.shuffle(rows)
        sampled = [[] if rng.random() < 0.1 else [rng.randrange(3) for _ in range(rng.randint(1, 4))] for _ in rows]
        for i, (row, new) in enumerate(zip(rows, sampled, strict=True)):
            row += new[: LIMIT - len(row)]
            board[i, : len(row)] = row
        rows_now = [list(r) for r in rows]
        drafts = proposer.propose(sampled, np.array([len(r) for r in rows]), board, slot_mappings=None)
        for row, new, made in zip(rows_now, sampled, drafts, strict=True):
            k = max(0, min(3, LIMIT - len(row) - 1))
            assert made == (alone(row, k) if new else [])
            drafted += len(made)
        assert len(proposer.known) == sum(bool(new) for new in sampled)
        rows = [r for r in rows if len(r) < LIMIT]
    assert drafted > 500


def test_a_drafter_that_lies_costs_its_drafts_only() -> None:
    proposer = make(method=f"{__name__}:Liar")
    assert proposer.propose([[1]], np.array([2]), np.ones((1, LIMIT), dtype=np.int32)) == [[]]


def test_only_lookup_can_run_there() -> None:
    with pytest.raises(ValueError, match="LookupDrafter"):
        make(method=f"{__name__}:no_lookup")
