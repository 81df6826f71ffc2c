"""What stands between the engine and a drafter: whatever that does wrong costs drafts and one warning, never the answer."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence as Seq
from typing import Any

from torch import Tensor

from headstart.core.errors import first_line
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft.base import Drafter
from headstart.ops.verify import array_of
from headstart.runtime.runner import Runner

log = logging.getLogger("headstart")


class Guard(Drafter):
    """Invariant: every proposal that leaves has at most the drafts asked for, all of them ids of the target, and a law or none."""

    def __init__(self, drafter: Drafter, vocab: int) -> None:
        self.drafter, self.vocab = drafter, vocab
        self.name, self.free, self.asks, self.prior = drafter.name, drafter.free, drafter.asks, drafter.prior
        self.kv_bytes_per_token, self.hidden_layers = drafter.kv_bytes_per_token, drafter.hidden_layers
        self.warned: set[str] = set()

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.drafter.allocate(num_blocks, block_size)

    def attach(self, target: Runner) -> None:
        self.drafter.attach(target)

    def serves(self, seq: Sequence) -> bool:
        try:
            return bool(self.drafter.serves(seq))
        except Exception as e:
            self._warn("it is not asked", e)
            return False

    def behind(self, seq: Sequence) -> int:
        try:
            return int(self.drafter.behind(seq))
        except Exception as e:
            self._warn("what it costs is known less well", e)
            return 0

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        try:
            proposals = list(self.drafter.propose(chunks))
            if len(proposals) != len(chunks):
                raise ValueError(f"{len(proposals)} proposals for {len(chunks)} chunks")
        except Exception as e:
            self._warn("its steps run without drafts", e)
            return [Proposal() for _ in chunks]
        return [self._checked(c, p) for c, p in zip(chunks, proposals, strict=True)]

    def _checked(self, chunk: Chunk, proposal: Proposal) -> Proposal:
        try:
            if len(proposal.tokens) > chunk.k:
                self._warn("those beyond are dropped", ValueError(f"{len(proposal.tokens)} drafts where {chunk.k} were asked for"))
            tokens = [operator.index(t) for t in proposal.tokens[: chunk.k]]
            foreign = [t for t in tokens if not 0 <= t < self.vocab]
            if foreign:
                raise ValueError(f"{foreign[0]} is not an id of the vocabulary (0..{self.vocab - 1})")
        except Exception as e:
            self._warn("such steps run without drafts", e)
            return Proposal()
        odds = proposal.odds if len(proposal.odds) == len(tokens) else ()
        return Proposal(tokens, self._law(tokens, proposal.probs), odds=odds)

    def _law(self, tokens: list[int], probs: Any) -> Any:
        """The reported law if it can be one, else None: a draft judged as a point mass is lossless whatever chose it."""
        if probs is None or not tokens:
            return None
        try:
            rows = probs[: len(tokens)]
            if tuple(rows.shape) != (len(tokens), self.vocab) or not rows.is_floating_point():
                raise ValueError(f"a law must be [{len(tokens)}, {self.vocab}] numbers, not {tuple(rows.shape)} of {rows.dtype}")
            law = array_of(rows)
            if not (law.min() >= 0 and (abs(law.sum(-1) - 1) < 1e-2).all()):  # neither holds of NaN
                raise ValueError("a law must not be negative and must sum to 1")
            if not (law[range(len(tokens)), tokens] > 0).all():
                raise ValueError("a draft was reported as impossible: its law must be what it was drawn from")
            return rows
        except Exception as e:
            self._warn("its drafts are judged as if it had reported no law", e)
            return None

    def see(self, chunks: Seq[Chunk], states: Seq[Tensor]) -> None:
        try:
            self.drafter.see(chunks, states)
        except Exception as e:
            self._warn("it may draft worse from here on", e)

    def observe(self, chunks: Seq[Chunk]) -> None:
        try:
            self.drafter.observe(chunks)
        except Exception as e:
            self._warn("it may draft worse from here on", e)

    def forget(self, seq: Sequence) -> None:
        try:
            self.drafter.forget(seq)
        except Exception as e:
            self._warn("it may keep memory", e)

    def _warn(self, consequence: str, error: Exception) -> None:
        """One line for each kind of fault, not one a step: a broken drafter must not fill the log."""
        if consequence not in self.warned:
            self.warned.add(consequence)
            name = type(self.drafter).__name__
            log.warning("the drafter %s failed (%s: %s): %s", name, type(error).__name__, first_line(error), consequence, exc_info=error)
