"""Blocks for models some of whose layers see a window only: those layers have a pool of their own, small whatever the texts' lengths.

A sequence then has two tables. `seq.table` covers all of its tokens, for the layers that see them all (and for a draft model);
`seq.local` has holes where blocks lie wholly before the window. A draft never reaches back: the window is taken from the committed
tokens, so whatever is rejected, what the next rows may see is still there.
"""

from __future__ import annotations

from headstart.core.blocks import HOLE, BlockPool
from headstart.core.memory import blocks_of
from headstart.core.types import Sequence


class WindowPool(BlockPool):
    """A pool and, beside it, `local` for the layers with a window of `window` tokens. Both speak of the same tokens by the same hashes."""

    def __init__(self, num_blocks: int, block_size: int, share: bool, local_blocks: int, window: int) -> None:
        super().__init__(num_blocks, block_size, share)
        self.local: BlockPool = BlockPool(local_blocks, block_size, share)
        self.window = window

    def room(self, seq: Sequence) -> int:
        return min(super().room(seq), (len(seq.local) + self.local.available) * self.block_size)

    def extend(self, seq: Sequence, slots: int) -> bool:
        fits = self.local.needed(seq.local, slots) <= self.local.available
        return fits and super().extend(seq, slots) and self.local.grow(seq.local, slots)

    def cut(self, seq: Sequence, slots: int) -> None:
        super().cut(seq, slots)
        self.local.trim(seq.local, slots)

    def settle(self, seq: Sequence) -> None:
        super().settle(seq)
        for i in range(self._first(seq.computed) - 1, -1, -1):
            if seq.local[i] == HOLE:
                break
            self.local.give_back(seq.local[i])
            seq.local[i] = HOLE

    def publish(self, seq: Sequence) -> None:
        before = len(seq.hashes)
        super().publish(seq)
        for i in range(before, len(seq.hashes)):
            self.local.offer(seq.hashes[i], seq.local[i])

    def adopt(self, seq: Sequence) -> int:
        """As for one pool, but the prefix ends where the window before its end can be found too."""
        digests = self.known(seq)
        while digests and not all(d in self.local.by_hash for d in digests[self._first(len(digests) * self.block_size) :]):
            digests.pop()
        first = self._first(len(digests) * self.block_size)
        seq.hashes.extend(digests)
        seq.table.extend(self.claim(d) for d in digests)
        seq.local.extend([HOLE] * first + [self.local.claim(d) for d in digests[first:]])
        seq.computed = len(digests) * self.block_size
        return seq.computed

    def forget(self) -> None:
        super().forget()
        self.local.forget()

    @property
    def usage(self) -> float:
        return max(super().usage, self.local.usage)

    def _first(self, computed: int) -> int:
        """The first block that a row at position `computed` or later may see."""
        return max(0, computed - self.window + 1) // self.block_size


def local_blocks_needed(window: int, rows: int, block_size: int) -> int:
    """Blocks that one sequence holds of the local pool at most: a window, and the rows of one pass behind it."""
    return blocks_of(window - 1 + rows, block_size) + 1
