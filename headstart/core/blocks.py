"""BlockPool: who owns which KV block. Grow, trim, share by prefix hash, count references, check.

Knows block ids and token ids, no tensors: target and draft model index their own tensors by the same ids. A block is
in exactly one of three states: free, cached (unowned, but its contents can still be found by hash), or owned by one
or more tables. Only full blocks of committed tokens are ever shared, and a shared block is never written by the target.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from headstart.core.types import Sequence

_ROOT = b"headstart"
HOLE = -1  # in a table: a block that was given back because nothing before the window is seen again


def chain_hash(parent: bytes, tokens: Seq[int]) -> bytes:
    """SHA-256 of a full block's tokens given the hash of everything before it."""
    return hashlib.sha256(parent + b",".join(b"%d" % t for t in tokens)).digest()


class BlockPool:
    """Fixed number of blocks of `block_size` slots. Invariant (`check`): free, cached and owned partition the ids."""

    local: BlockPool | None = None  # of layers that see a window only, where they have blocks of their own (core/window.py)

    def __init__(self, num_blocks: int, block_size: int, share: bool = True) -> None:
        self.num_blocks, self.block_size, self.share = num_blocks, block_size, share
        self.free = list(range(num_blocks))  # a heap: the lowest id first, so that a lone sequence lies contiguously
        self.refs = [0] * num_blocks
        self.hash_of: dict[int, bytes] = {}
        self.by_hash: dict[bytes, int] = {}
        self.cached: OrderedDict[int, None] = OrderedDict()  # unowned but findable, least recently used first
        self.queries = self.hits = 0  # prompt tokens looked up in the prefix cache, and found

    @property
    def available(self) -> int:
        """Blocks that can be handed out now."""
        return len(self.free) + len(self.cached)

    @property
    def usage(self) -> float:
        """The part of all blocks that is held, 0 to 1."""
        return 1 - self.available / max(self.num_blocks, 1)

    def needed(self, table: Seq[int], slots: int) -> int:
        """Further blocks a table needs to hold `slots` tokens."""
        return max(0, -(-slots // self.block_size) - len(table))

    def grow(self, table: list[int], slots: int) -> bool:
        """Extend a table to hold `slots` tokens; all or nothing."""
        need = self.needed(table, slots)
        if need > self.available:
            return False
        for _ in range(need):
            block = heapq.heappop(self.free) if self.free else self._evict()
            self.refs[block] = 1
            table.append(block)
        return True

    def trim(self, table: list[int], slots: int) -> None:
        """Give back the blocks beyond `slots` tokens."""
        keep = -(-slots // self.block_size)
        while len(table) > keep:
            self.give_back(table.pop())

    def room(self, seq: Sequence) -> int:
        """How many slots a sequence could hold now."""
        return (len(seq.table) + self.available) * self.block_size

    def extend(self, seq: Sequence, slots: int) -> bool:
        """`grow` for a sequence."""
        return self.grow(seq.table, slots)

    def cut(self, seq: Sequence, slots: int) -> None:
        """`trim` for a sequence."""
        self.trim(seq.table, slots)

    def settle(self, seq: Sequence) -> None:
        """After a step: what was computed may be found by others, and what drafts were rejected is given back."""
        self.publish(seq)
        self.cut(seq, len(seq.tokens))

    def release(self, seq: Sequence) -> None:
        """Give back everything a sequence holds; what it shared stays findable until the room is needed."""
        self.cut(seq, 0)
        seq.hashes.clear()
        seq.computed = 0

    def adopt(self, seq: Sequence) -> int:
        """Give an empty sequence the cached blocks of its longest known prefix; returns the tokens so covered.

        At least one token is left to compute, since its logits are needed.
        """
        seq.hashes.extend(self.known(seq))
        seq.table.extend(self.claim(digest) for digest in seq.hashes)
        seq.computed = len(seq.table) * self.block_size
        return seq.computed

    def known(self, seq: Sequence) -> list[bytes]:
        """The hashes of the longest prefix whose blocks can all be found."""
        digests: list[bytes] = []
        if not self.share:
            return digests
        size, parent = self.block_size, _ROOT + seq.salt
        for start in range(0, len(seq.tokens) - size, size):
            parent = chain_hash(parent, seq.tokens[start : start + size])
            if parent not in self.by_hash:
                break
            digests.append(parent)
        return digests

    def claim(self, digest: bytes) -> int:
        """The block that can be found by a hash, with one more owner."""
        block = self.by_hash[digest]
        if self.refs[block] == 0:
            del self.cached[block]
        self.refs[block] += 1
        return block

    def offer(self, digest: bytes, block: int) -> None:
        """Let a block be found by its hash, unless another can already."""
        if digest not in self.by_hash:
            self.by_hash[digest] = block
            self.hash_of[block] = digest

    def publish(self, seq: Sequence) -> None:
        """Make the full blocks below `seq.computed` findable: committed tokens only, never a draft."""
        if not self.share:
            return
        size = self.block_size
        for i in range(len(seq.hashes), seq.computed // size):
            parent = seq.hashes[-1] if seq.hashes else _ROOT + seq.salt
            seq.hashes.append(chain_hash(parent, seq.tokens[i * size : (i + 1) * size]))
            self.offer(seq.hashes[-1], seq.table[i])

    def forget(self) -> None:
        """Drop what no sequence owns from the prefix cache, so that the next prompt is computed in full."""
        while self.cached:
            heapq.heappush(self.free, self._evict())

    def check(self, tables: Iterable[Seq[int]] = ()) -> None:
        """Raise AssertionError unless every block is free, cached or owned exactly as often as the tables say."""
        owned = [0] * self.num_blocks
        for table in tables:
            for block in table:
                if block != HOLE:
                    owned[block] += 1
        assert owned == self.refs, "reference counts differ from the tables"
        unowned = sorted(self.free) + sorted(self.cached)
        assert sorted(unowned) == [b for b in range(self.num_blocks) if not self.refs[b]], "a block is lost or held twice"
        assert all(self.by_hash[h] == b for b, h in self.hash_of.items()), "hash maps disagree"
        assert len(self.by_hash) == len(self.hash_of), "hash maps disagree"
        assert all(b in self.hash_of for b in self.cached), "a cached block cannot be found"

    def give_back(self, block: int) -> None:
        """One owner less of a block of a table."""
        if block == HOLE:
            return
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if block in self.hash_of:
                self.cached[block] = None
            else:
                heapq.heappush(self.free, block)

    def _evict(self) -> int:
        block, _ = self.cached.popitem(last=False)
        del self.by_hash[self.hash_of.pop(block)]
        return block
