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


def chain_hash(parent: bytes, tokens: Seq[int]) -> bytes:
    """SHA-256 of a full block's tokens given the hash of everything before it."""
    return hashlib.sha256(parent + b",".join(b"%d" % t for t in tokens)).digest()


class BlockPool:
    """Fixed number of blocks of `block_size` slots. Invariant (`check`): free, cached and owned partition the ids."""

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
            self._release(table.pop())

    def release(self, seq: Sequence) -> None:
        """Give back everything a sequence holds; what it shared stays findable until the room is needed."""
        self.trim(seq.table, 0)
        seq.hashes.clear()
        seq.computed = 0

    def adopt(self, seq: Sequence) -> int:
        """Give an empty sequence the cached blocks of its longest known prefix; returns the tokens so covered.

        At least one token is left to compute, since its logits are needed.
        """
        if not self.share:
            return 0
        size, parent = self.block_size, _ROOT + seq.salt
        for start in range(0, len(seq.tokens) - size, size):
            digest = chain_hash(parent, seq.tokens[start : start + size])
            block = self.by_hash.get(digest)
            if block is None:
                break
            if self.refs[block] == 0:
                del self.cached[block]
            self.refs[block] += 1
            seq.table.append(block)
            seq.hashes.append(digest)
            parent = digest
        seq.computed = len(seq.table) * size
        return seq.computed

    def publish(self, seq: Sequence) -> None:
        """Make the full blocks below `seq.computed` findable: committed tokens only, never a draft."""
        if not self.share:
            return
        size = self.block_size
        for i in range(len(seq.hashes), seq.computed // size):
            parent = seq.hashes[-1] if seq.hashes else _ROOT + seq.salt
            digest = chain_hash(parent, seq.tokens[i * size : (i + 1) * size])
            seq.hashes.append(digest)
            if digest not in self.by_hash:
                self.by_hash[digest] = seq.table[i]
                self.hash_of[seq.table[i]] = digest

    def forget(self) -> None:
        """Drop what no sequence owns from the prefix cache, so that the next prompt is computed in full."""
        while self.cached:
            heapq.heappush(self.free, self._evict())

    def check(self, tables: Iterable[Seq[int]] = ()) -> None:
        """Raise AssertionError unless every block is free, cached or owned exactly as often as the tables say."""
        owned = [0] * self.num_blocks
        for table in tables:
            for block in table:
                owned[block] += 1
        assert owned == self.refs, "reference counts differ from the tables"
        unowned = sorted(self.free) + sorted(self.cached)
        assert sorted(unowned) == [b for b in range(self.num_blocks) if not self.refs[b]], "a block is lost or held twice"
        assert all(self.by_hash[h] == b for b, h in self.hash_of.items()), "hash maps disagree"
        assert len(self.by_hash) == len(self.hash_of), "hash maps disagree"
        assert all(b in self.hash_of for b in self.cached), "a cached block cannot be found"

    def _release(self, block: int) -> None:
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
