"""BlockPool: every block is free, findable or owned, and a findable block holds exactly what its hash says.

The life cycle test keeps a fake KV: each slot stores the whole prefix whose last token was written there. So a draft
that stays findable, a shared block that is overwritten or a block handed out twice shows up as wrong contents.
"""

from random import Random

import pytest

from headstart.core.blocks import _ROOT, BlockPool, chain_hash
from headstart.core.params import SamplingParams
from headstart.core.types import Sequence


def sequence(tokens, id=0) -> Sequence:
    return Sequence(id, f"r{id}", 0, SamplingParams(), list(tokens), len(tokens), seed=0, max_len=1000)


def finish_prefill(pool: BlockPool, seq: Sequence) -> None:
    """Compute everything but the last token, as one step of plain decoding would leave it."""
    assert pool.grow(seq.table, len(seq.tokens))
    seq.computed = len(seq.tokens) - 1
    pool.publish(seq)
    pool.trim(seq.table, len(seq.tokens))


def digest(prefix, size: int) -> bytes:
    """The chain hash of a prefix of full blocks."""
    out = _ROOT
    for i in range(0, len(prefix), size):
        out = chain_hash(out, prefix[i : i + size])
    return out


# The life cycle


class Life:
    """Random sequences on one pool with a fake KV that stores prefixes; `check` after every operation."""

    def __init__(self, seed: int, size: int, share: bool) -> None:
        self.rng, self.size = Random(seed), size
        self.pool = BlockPool(24, size, share)
        self.live: list[Sequence] = []
        self.slots: dict[int, tuple[int, ...]] = {}
        self.committed: set[tuple[int, ...]] = set()
        self.seen = dict.fromkeys(("adopted", "rejected", "refused", "crossed", "shared"), 0)

    def slot(self, seq: Sequence, position: int) -> int:
        return seq.table[position // self.size] * self.size + position % self.size

    def check(self) -> None:
        pool, size = self.pool, self.size
        pool.check(s.table for s in self.live)
        self.seen["shared"] += max(pool.refs) > 1
        for seq in self.live:
            for position in range(seq.computed):
                assert self.slots[self.slot(seq, position)] == tuple(seq.tokens[: position + 1])
        for block, found in pool.hash_of.items():
            held = self.slots[block * size + size - 1]
            assert held in self.committed and digest(held, size) == found
            assert all(self.slots[block * size + i] == held[: len(held) - size + i + 1] for i in range(size))

    def start(self) -> None:
        prompt = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 4 * self.size))]
        seq = sequence(prompt, id=self.rng.randrange(10**9))
        free = self.pool.available
        self.pool.adopt(seq)
        assert seq.computed < len(prompt) and seq.computed == len(seq.table) * self.size
        self.seen["adopted"] += seq.computed > 0
        self.live.append(seq)
        assert self.pool.available <= free

    def step(self) -> None:
        seq, rng = self.rng.choice(self.live), self.rng
        drafts = [rng.randrange(2) for _ in range(rng.randint(0, 2 * self.size))]
        fed = seq.tokens + drafts
        before = list(seq.table)
        if not self.pool.grow(seq.table, len(fed)):
            assert seq.table == before  # all or nothing
            self.seen["refused"] += 1
            self.check()
            return
        self.check()
        for position in range(seq.computed, len(fed)):
            block = seq.table[position // self.size]
            assert self.pool.refs[block] == 1 and block not in self.pool.hash_of  # never write what others may read
            self.slots[self.slot(seq, position)] = tuple(fed[: position + 1])
        accepted = rng.randint(0, len(drafts))
        self.seen["rejected"] += accepted < len(drafts)
        self.seen["crossed"] += (len(seq.tokens) + accepted) // self.size < len(fed) // self.size
        seq.tokens.extend([*drafts[:accepted], rng.randrange(2)])
        seq.computed = len(seq.tokens) - 1
        self.committed.update(tuple(seq.tokens[: n + 1]) for n in range(seq.computed))
        self.pool.publish(seq)
        self.check()
        self.pool.trim(seq.table, len(seq.tokens))
        assert len(seq.table) == -(-len(seq.tokens) // self.size) or len(seq.table) == -(-seq.computed // self.size)

    def end(self) -> None:
        seq = self.live.pop(self.rng.randrange(len(self.live)))
        self.pool.release(seq)
        assert (seq.table, seq.hashes, seq.computed) == ([], [], 0)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_life_cycle(size, share):
    """Hundreds of random operations; everything of interest happens; at the end every block comes back."""
    life = Life(size, size, share)
    for _ in range(500):
        move = life.rng.random()
        if not life.live or move < 0.2:
            life.start()
        elif move < 0.82:
            life.step()
        else:
            life.end()
        life.check()
    assert life.seen["rejected"] > 20 and life.seen["crossed"] > 10 and life.seen["refused"] > 0
    assert (life.seen["adopted"] > 20) == share and (life.seen["shared"] > 20) == share
    while life.live:
        life.end()
        life.check()
    assert life.pool.available == life.pool.num_blocks


# One property each


def test_grow_is_all_or_nothing():
    """What does not fit leaves the pool and the table alone."""
    pool, table = BlockPool(4, 4), []
    assert pool.grow(table, 5) and len(table) == 2
    assert not pool.grow(table, 17)
    assert len(table) == 2 and pool.available == 2
    assert pool.grow(table, 8) and len(table) == 2  # already there
    assert pool.grow(table, 16) and pool.available == 0
    pool.check([table])


@pytest.mark.parametrize(("slots", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_needed_and_trim(slots, blocks):
    """Blocks are counted up to whole ones, and trim keeps exactly those."""
    pool, table = BlockPool(4, 4), []
    assert pool.needed([], slots) == blocks
    pool.grow(table, 16)
    kept = table[:blocks]
    pool.trim(table, slots)
    assert table == kept
    pool.check([table])


def test_a_lone_sequence_lies_contiguously():
    """Lowest ids first, also after growing and trimming many times."""
    pool, rng = BlockPool(50, 4), Random(0)
    seq = sequence(range(3))
    while len(seq.tokens) < 150:
        pool.grow(seq.table, len(seq.tokens) + rng.randint(0, 40))
        assert seq.table == list(range(len(seq.table)))
        seq.tokens.append(1)
        pool.trim(seq.table, len(seq.tokens))
    pool.trim(seq.table, 0)
    pool.grow(seq.table, 100)
    assert seq.table == list(range(25))


def test_shared_block_is_counted():
    """Two sequences with one beginning own the same blocks; they come free with the last owner, and stay findable."""
    pool = BlockPool(16, 4)
    a, b, c = (sequence([1, 2, 3, 4, 5, 6, 7, 8, last]) for last in (9, 10, 11))
    finish_prefill(pool, a)
    assert pool.adopt(b) == 8 and b.table == a.table[:2] and b.computed == 8
    assert [pool.refs[x] for x in b.table] == [2, 2]
    pool.check([a.table, b.table])
    pool.release(a)
    assert [pool.refs[x] for x in b.table] == [1, 1]
    pool.check([b.table])
    shared = list(b.table)
    pool.release(b)
    pool.check()
    assert pool.available == 16
    assert pool.adopt(c) == 8 and c.table == shared
    pool.check([c.table])


@pytest.mark.parametrize(("length", "covered"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_adopt_leaves_a_token_to_compute(length, covered):
    """Of an entirely known prompt at least the last token is computed: its logits are needed."""
    pool, tokens = BlockPool(16, 4), list(range(13))
    finish_prefill(pool, sequence(tokens))
    seq = sequence(tokens[:length])
    assert pool.adopt(seq) == seq.computed == covered < length


def test_rejected_draft_across_a_block_edge_is_never_findable():
    """Drafts fill block 1 and are rejected; a second request with that very text finds only block 0."""
    pool, seq = BlockPool(16, 4), sequence([1, 2, 3, 4, 5])
    drafts = [6, 7, 8, 9]
    pool.grow(seq.table, len(seq.tokens) + len(drafts))
    seq.tokens.append(0)  # everything rejected, one correction
    seq.computed = len(seq.tokens) - 1
    pool.publish(seq)
    pool.trim(seq.table, len(seq.tokens))
    other = sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert pool.adopt(other) == 4
    pool.check([seq.table, other.table])


def test_only_full_blocks_below_computed_are_findable():
    """A block whose last token is the tail, not yet computed, is offered one step later."""
    pool, seq = BlockPool(16, 4), sequence([1, 2, 3, 4, 5, 6, 7])
    pool.grow(seq.table, 8)
    seq.tokens.append(8)
    seq.computed = 7
    pool.publish(seq)
    assert pool.adopt(sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 4
    seq.tokens.append(9)
    seq.computed = 8
    pool.publish(seq)
    assert pool.adopt(sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 8


def test_equal_content_after_another_prefix_does_not_match():
    """The hash is of everything before, too; and ids are told apart in it (1, 23 is not 12, 3)."""
    pool = BlockPool(16, 4)
    finish_prefill(pool, sequence([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert pool.adopt(sequence([0, 2, 3, 4, 5, 6, 7, 8, 9])) == 0
    assert pool.adopt(sequence([5, 6, 7, 8, 5, 6, 7, 8, 9])) == 0
    assert chain_hash(_ROOT, [1, 23]) != chain_hash(_ROOT, [12, 3])
    assert chain_hash(chain_hash(_ROOT, [1]), [2]) != chain_hash(chain_hash(_ROOT, [2]), [2])


def test_least_recently_used_goes_first():
    """Free blocks before cached ones; of those the longest unused, and within a sequence the end before the beginning."""
    pool = BlockPool(6, 2)
    first, second = sequence([1, 2, 3, 4, 0]), sequence([5, 6, 7, 8, 0])
    for seq in (first, second):
        finish_prefill(pool, seq)
    for seq in (first, second):
        pool.release(seq)
    again = sequence([1, 2, 3, 4, 9])
    pool.adopt(again)
    pool.release(again)  # the first is now the more recently used

    def known(seq: Sequence) -> int:
        probe = sequence(seq.tokens)
        found = sum(digest(probe.tokens[:n], 2) in pool.by_hash for n in (2, 4))
        return found * 2

    table: list[int] = []
    left = []
    for blocks in range(1, 7):
        assert pool.grow(table, 2 * blocks)
        pool.check([table])
        left.append((known(first), known(second)))
    assert left == [(4, 4), (4, 4), (4, 2), (4, 0), (2, 0), (0, 0)]


def test_without_sharing_nothing_is_found():
    """share=False: no hashes, no hits, every block goes straight back."""
    pool, seq = BlockPool(8, 2, share=False), sequence([1, 2, 3, 4, 5])
    finish_prefill(pool, seq)
    assert not pool.hash_of and pool.adopt(sequence(seq.tokens)) == 0
    pool.release(seq)
    assert len(pool.free) == 8 and pool.queries == 0


def test_two_sequences_that_compute_the_same_text_apart():
    """The second to publish keeps its own block, unfindable; nothing is lost whichever ends first."""
    for first_out in (0, 1):
        pool = BlockPool(8, 2)
        pair = [sequence([1, 2, 3, 4, 5]), sequence([1, 2, 3, 4, 5])]
        for seq in pair:
            pool.grow(seq.table, 5)
        for seq in pair:
            seq.computed = 4
            pool.publish(seq)
        pool.check(s.table for s in pair)
        pool.release(pair[first_out])
        pool.check([pair[1 - first_out].table])
        probe = sequence([1, 2, 3, 4, 9])
        assert pool.adopt(probe) == 4
        pool.check([pair[1 - first_out].table, probe.table])


@pytest.mark.parametrize("fault", ["lost", "twice", "refs", "hash"])
def test_check_finds_a_fault(fault):
    """`check` is what the other tests lean on: it must see a broken pool."""
    pool, seq = BlockPool(8, 2), sequence([1, 2, 3, 4, 5])
    finish_prefill(pool, seq)
    pool.check([seq.table])
    if fault == "lost":
        pool.free.pop()
    elif fault == "twice":
        pool.free.append(seq.table[0])
    elif fault == "refs":
        pool.refs[seq.table[0]] += 1
    else:
        pool.by_hash[pool.hash_of[seq.table[0]]] = seq.table[1]
    with pytest.raises(AssertionError):
        pool.check([seq.table])


def test_a_salt_keeps_equal_text_apart():
    pool = BlockPool(20, 4)
    seqs = [sequence(range(9), i) for i in range(3)]
    seqs[1].salt = b"another key"
    finish_prefill(pool, seqs[0])
    assert pool.adopt(seqs[1]) == 0 and pool.adopt(seqs[2]) == 8
    finish_prefill(pool, seqs[1])
    other = sequence(range(9), 3)
    other.salt = b"another key"
    assert pool.adopt(other) == 8 and other.table[0] == seqs[1].table[0] != seqs[0].table[0]
    pool.check([s.table for s in (*seqs, other)])
