"""Scheduler: who runs in the next pass, how many tokens each feeds, and the blocks they need.

Running sequences go first, oldest first, then waiting ones while the row budget lasts. A sequence that does not find
blocks gives up its drafts first, then the youngest running sequence is preempted: its blocks go back and its KV is
recomputed later. Knows lengths and blocks only: no model, no drafter, no text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headstart.core.blocks import BlockPool
from headstart.core.types import Chunk, Sequence

# Rows of one pass that a prompt gets when every row is scored: each makes logits over the whole vocabulary.
SCORED_ROWS = 256

DraftLength = Callable[[Sequence], int]


class Scheduler:
    """Invariant: a sequence is in `waiting` (holding no blocks) or in `running`, never in both."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool, self.max_num_seqs, self.max_rows = pool, max_num_seqs, max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, finished or aborted; its blocks go back."""
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        self.pool.release(seq)

    def plan(self, draft_length: DraftLength) -> tuple[list[Chunk], list[Sequence]]:
        """The chunks of the next pass, with blocks reserved for every row, and the sequences preempted on the way.

        `draft_length(seq)` is how many drafts a sequence would like; it gets at most that, never so many that
        accepting them all would overshoot `remaining`.
        """
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        rows = self.max_rows
        # Those that decode go before those still in prefill, so that a long prompt never starves the others of rows.
        order = sorted(self.running, key=lambda s: len(s.tokens) - s.computed > 1)
        for i, seq in enumerate(order):
            if rows == 0:
                break
            if seq in preempted:
                continue
            behind = len(order) - i - 1  # drafts leave a row for each of these
            chunk = self._reserve(seq, rows, draft_length, behind)
            while chunk is None and self._make_room(seq, chunks, preempted):
                rows = self.max_rows - sum(c.count + c.k for c in chunks)
                chunk = self._reserve(seq, rows, draft_length, behind)
            if chunk is None:
                self.preempt(seq, preempted)
            else:
                chunks.append(chunk)
                rows -= chunk.count + chunk.k
        if not preempted:  # room was short: do not admit anybody into it
            self._admit(chunks, rows, draft_length)
        return chunks, preempted

    def _admit(self, chunks: list[Chunk], rows: int, draft_length: DraftLength) -> None:
        while self.waiting and rows > 0 and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            if self.pool.share and any(s.request_id == seq.request_id and s.computed < s.prompt_len for s in self.running):
                return  # a sibling is computing the very prompt this one can then share
            cached = 0 if seq.score_prompt else self.pool.adopt(seq)
            chunk = self._reserve(seq, rows, draft_length)
            if chunk is None:
                self.pool.release(seq)
                return
            if not seq.preemptions:
                seq.cached = cached
                if self.pool.share:
                    self.pool.queries += len(seq.tokens)
                    self.pool.hits += cached
            self.running.append(self.waiting.popleft())
            chunks.append(chunk)
            rows -= chunk.count + chunk.k

    def _reserve(self, seq: Sequence, rows: int, draft_length: DraftLength, behind: int = 0) -> Chunk | None:
        """A chunk of at most `rows` rows with its blocks; None if it does not fit.

        Drafts shrink to the free blocks and to the rows, of which they leave one for each of the `behind` sequences.
        """
        count = min(len(seq.tokens) - seq.computed, rows, SCORED_ROWS if seq.score_prompt else rows)
        chunk = Chunk(seq, count)
        if chunk.samples:
            chunk.k = max(0, min(draft_length(seq), seq.remaining - 1, rows - count - behind))
        slots = seq.computed + count
        chunk.k = max(0, min(chunk.k, self.pool.room(seq) - slots))
        return chunk if self.pool.extend(seq, slots + chunk.k) else None

    def _make_room(self, seq: Sequence, chunks: list[Chunk], preempted: list[Sequence]) -> bool:
        """One sacrifice for `seq`: the drafts planned last, then the youngest sequence; False if nothing is left."""
        for chunk in reversed(chunks):
            if chunk.k:
                chunk.k = 0
                self.pool.cut(chunk.seq, chunk.seq.computed + chunk.count)
                return True
        victim = self._youngest_after(seq, chunks)
        if victim is not None:
            self.preempt(victim, preempted)
        return victim is not None

    def _youngest_after(self, seq: Sequence, chunks: list[Chunk]) -> Sequence | None:
        """The youngest running sequence that is neither `seq` nor already planned in this pass."""
        planned = {id(c.seq) for c in chunks}
        for other in reversed(self.running):
            if other is seq:
                return None
            if id(other) not in planned:
                return other
        return None

    def preempt(self, seq: Sequence, preempted: list[Sequence]) -> None:
        """Send a running sequence back to waiting, its blocks to the pool; it is added to `preempted`."""
        self.running.remove(seq)
        self.pool.release(seq)
        seq.preemptions += 1
        self.waiting.appendleft(seq)
        preempted.append(seq)
