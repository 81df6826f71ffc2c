"""Predicted outputs: the answer a client expects is the first place to look; where it has nothing to say, another drafter is asked.

Stands in front of every drafter, since any request may bring a prediction. The method `prediction` has nothing behind it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft.base import DraftContext, Drafter
from headstart.draft.none import NoDrafter
from headstart.lookup.cursor import Cursor

_TRUST = 4  # drafts for each token by which text and prediction agree, which after an edit may be by accident; and for a guess


class PredictionDrafter(Drafter):
    """Invariant: a cursor has followed committed tokens only, so nothing needs undoing after a rejection."""

    def __init__(self, behind: Drafter, drafts_behind: int) -> None:
        self.behind, self.drafts_behind = behind, drafts_behind
        self.kv_bytes_per_token, self.hidden_layers = behind.kv_bytes_per_token, behind.hidden_layers
        self.cursors: dict[int, Cursor] = {}

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.behind.allocate(num_blocks, block_size)

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        predicted = [self._predicted(c) for c in chunks]
        left = [replace(c, k=0 if p.tokens and self._sure(c.seq) else self._limit(c)) for c, p in zip(chunks, predicted, strict=True)]
        if not any(c.k for c in left):
            return predicted
        return [other if other.tokens else p for p, other in zip(predicted, self.behind.propose(left), strict=True)]

    def _sure(self, seq: Sequence) -> bool:
        """Whether text and prediction agree; where they have just parted, the drafter behind is asked before a guess is made."""
        return self.cursors[seq.id].untouched or self.cursors[seq.id].agreed > 0

    def _predicted(self, chunk: Chunk) -> Proposal:
        seq = chunk.seq
        if not seq.prediction or chunk.k == 0:
            return Proposal()
        cursor = self.cursors.setdefault(seq.id, Cursor(seq.prediction))
        cursor.follow(seq.tokens, seq.prompt_len)
        limit = chunk.k if cursor.untouched else min(chunk.k, _TRUST * max(cursor.agreed, 1))
        return Proposal(list(cursor.draft(limit)), predicted=True)

    def _limit(self, chunk: Chunk) -> int:
        """Drafts for the drafter behind: what it was configured to, or what the request says."""
        own = chunk.seq.params.num_speculative_tokens
        return min(chunk.k, self.drafts_behind if own is None else own)

    def see(self, chunks: Seq[Chunk], states: Seq[Tensor]) -> None:
        self.behind.see(chunks, states)

    def observe(self, chunks: Seq[Chunk]) -> None:
        self.behind.observe(chunks)

    def forget(self, seq: Sequence) -> None:
        self.cursors.pop(seq.id, None)
        self.behind.forget(seq)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    return NoDrafter()  # the engine puts a PredictionDrafter in front
