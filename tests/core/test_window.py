"""WindowPool: what a row may see is always there, what it cannot see comes back, and no draft is ever found by others.

As in test_blocks, a fake KV stores in each slot of the window's pool the whole prefix whose last token was written there.
"""

from random import Random

import pytest

from headstart.core.blocks import HOLE
from headstart.core.memory import Blocks, split_blocks
from headstart.core.window import WindowPool, local_blocks_needed
from tests.core.test_blocks import sequence


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("size", "window"), [(1, 3), (2, 5), (4, 1), (4, 4), (4, 9)])
def test_life_cycle(size, window, share):
    rng, pool = Random(10 * size + window), WindowPool(60, size, share, 24, window)
    slots: dict[int, tuple[int, ...]] = {}
    live, seen = [], dict.fromkeys(("adopted", "holes", "rejected", "refused", "shared"), 0)

    def check() -> None:
        pool.check(s.table for s in live)
        pool.local.check(s.local for s in live)
        seen["shared"] += max(pool.local.refs) > 1
        for seq in live:
            for position in range(max(0, seq.computed - window + 1), seq.computed):
                block = seq.local[position // size]
                assert slots[block * size + position % size] == tuple(seq.tokens[: position + 1])
            first = max(0, seq.computed - window + 1) // size
            assert all(b == HOLE for b in seq.local[:first]) and HOLE not in seq.local[first:]
            seen["holes"] += first > 0

    for _ in range(600):
        move = rng.random()
        if not live or move < 0.2:
            seq = sequence([rng.randrange(2) for _ in range(rng.randint(1, 4 * size))], rng.randrange(10**9))
            pool.adopt(seq)
            assert seq.computed < len(seq.tokens) and len(seq.local) == len(seq.table) == seq.computed // size
            seen["adopted"] += seq.computed > 0
            live.append(seq)
        elif move < 0.85:
            seq = rng.choice(live)
            fed = seq.tokens + [rng.randrange(2) for _ in range(rng.randint(0, 2 * size))]
            before = list(seq.table), list(seq.local)
            fits = len(fed) <= pool.room(seq)
            assert pool.extend(seq, len(fed)) == fits
            if not fits:
                assert (seq.table, seq.local) == before  # all or nothing
                seen["refused"] += 1
                continue
            for position in range(seq.computed, len(fed)):
                block = seq.local[position // size]
                assert pool.local.refs[block] == 1 and block not in pool.local.hash_of  # never write what others may read
                slots[block * size + position % size] = tuple(fed[: position + 1])
            accepted = rng.randint(0, len(fed) - len(seq.tokens))
            seen["rejected"] += len(seq.tokens) + accepted < len(fed)
            seq.tokens.extend([*fed[len(seq.tokens) : len(seq.tokens) + accepted], rng.randrange(2)])
            seq.computed = len(seq.tokens) - 1
            pool.settle(seq)
        else:
            seq = live.pop(rng.randrange(len(live)))
            pool.release(seq)
            assert (seq.table, seq.local, seq.hashes, seq.computed) == ([], [], [], 0)
        check()
    never = set() if share else {"adopted", "shared"}
    if window == 1:  # a row sees itself alone: nothing of a window is ever shared
        never.add("shared")
    assert all((n > 0) == (name not in never) for name, n in seen.items()), seen
    while live:
        pool.release(live.pop())
    pool.forget()
    assert len(pool.free) == 60 and len(pool.local.free) == 24


def test_usage_is_that_of_the_fuller_pool():
    pool = WindowPool(10, 4, False, 4, 5)
    seq = sequence(range(8))
    assert pool.extend(seq, 8) and pool.usage == 0.5


@pytest.mark.parametrize(("window", "rows", "size"), [(1, 1, 4), (5, 3, 4), (512, 2048, 16), (7, 16, 1)])
def test_what_a_sequence_needs_at_most(window, rows, size):
    """Wherever a pass of `rows` rows begins, its window and itself lie in so many blocks."""
    needed = local_blocks_needed(window, rows, size)
    for start in range(3 * size + window):
        first, last = max(0, start - window + 1) // size, (start + rows - 1) // size
        assert last - first + 1 <= needed


def test_two_pools_share_a_budget():
    """In the proportion of one long sequence, or all that is left to a shorter one."""
    assert split_blocks(10 * (8 * 100 + 2 * 300) * 16, 100, 300, 16, 128, 2, 4) == Blocks(32, 8)
    assert split_blocks(2.5 * (8 * 100 + 2 * 300) * 16, 100, 300, 16, 128, 2, 4) == Blocks(20, 5)
    assert split_blocks((3 * 100 + 2 * 300) * 16, 100, 300, 16, 128, 2, 4) == Blocks(3, 2)
    assert split_blocks(0, 100, 300, 16, 128, 2, 4) == Blocks(0, 2)
    assert split_blocks(5 * 600 * 16, 0, 300, 16, 128, 2, 4) == Blocks(32, 8)
