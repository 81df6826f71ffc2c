"""Scheduler: budgets kept, drafts given up before sequences, the youngest preempted first, nobody lost or starved."""

from collections import Counter
from random import Random

import pytest

from headstart.core.blocks import BlockPool
from headstart.core.params import SamplingParams
from headstart.core.scheduler import Scheduler
from headstart.core.types import Chunk, Sequence


def sequence(id: int, prompt, max_tokens: int = 10, request: str | None = None, max_len: int = 1000) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    return Sequence(id, request or f"r{id}", 0, params, list(prompt), len(prompt), seed=0, max_len=max_len)


def scheduler(blocks: int = 100, size: int = 4, seqs: int = 8, rows: int = 64, share: bool = False) -> Scheduler:
    return Scheduler(BlockPool(blocks, size, share), seqs, rows)


def commit(s: Scheduler, chunk: Chunk, accepted: int | None = None) -> None:
    """What the engine does after a pass: append, roll back, publish, trim, take out what is finished."""
    seq = chunk.seq
    if chunk.samples:
        kept = chunk.k if accepted is None else accepted
        seq.tokens.extend([7] * (kept + 1))
        seq.computed = len(seq.tokens) - 1
    else:
        seq.computed += chunk.count
    s.pool.publish(seq)
    s.pool.trim(seq.table, len(seq.tokens))
    if seq.remaining <= 0:
        s.remove(seq)


def step(s: Scheduler, k: int = 0, accepted: int = 0) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """One step; returns {id: (count, k)} in the order of the plan, and the ids preempted."""
    chunks, preempted = s.plan(lambda seq: k)
    plan = {c.seq.id: (c.count, c.k) for c in chunks}
    for chunk in chunks:
        commit(s, chunk, min(accepted, chunk.k))
    s.pool.check(x.table for x in [*s.running, *s.waiting])
    return plan, [x.id for x in preempted]


# Budgets


def test_rows_are_shared_out_in_order():
    """Prefill is cut to the rows left; whoever finds none waits."""
    s = scheduler(rows=10)
    for i in range(3):
        s.add(sequence(i, range(6)))
    assert step(s)[0] == {0: (6, 0), 1: (4, 0)}
    assert step(s)[0] == {0: (1, 0), 1: (2, 0), 2: (6, 0)}


def test_drafts_count_as_rows():
    """Drafts take rows from the same budget and are cut to it."""
    s = scheduler(rows=8)
    s.add(sequence(0, [1]))
    assert step(s, k=5)[0] == {0: (1, 5)}
    s.add(sequence(1, [1]))
    assert step(s, k=5)[0] == {0: (1, 5), 1: (1, 1)}


def test_no_more_than_max_num_seqs_run():
    """The rest wait in order."""
    s = scheduler(seqs=2)
    for i in range(4):
        s.add(sequence(i, [1, 2], max_tokens=2))
    assert list(step(s)[0]) == [0, 1]
    assert list(step(s)[0]) == [0, 1]
    assert list(step(s)[0]) == [2, 3]


@pytest.mark.parametrize("limits", [{"max_tokens": 4}, {"max_tokens": 50, "max_len": 6}])
def test_k_never_overshoots(limits):
    """k <= remaining - 1, by max_tokens or by the context: accepting everything ends exactly at the limit."""
    s = scheduler()
    seq = sequence(0, [1, 2], **limits)
    s.add(seq)
    assert step(s, k=9, accepted=0)[0] == {0: (2, 3)}
    assert step(s, k=9, accepted=1)[0] == {0: (1, 2)}
    assert step(s, k=9)[0] == {0: (1, 0)}
    assert len(seq.output) == 4 and seq.remaining == 0 and not s.running


def test_a_drafter_that_wants_nothing_or_less():
    """k = 0 is plain decoding; a negative wish is read as 0."""
    s = scheduler()
    s.add(sequence(0, [1, 2]))
    assert step(s, k=0)[0] == {0: (2, 0)}
    assert step(s, k=-3)[0] == {0: (1, 0)}


def test_prefill_covers_the_prompt_once():
    """A long prompt goes in pieces that follow each other; drafts come only with the last of them."""
    s = scheduler(rows=8)
    s.add(sequence(0, range(21)))
    assert [step(s, k=2)[0] for _ in range(4)] == [{0: (8, 0)}, {0: (8, 0)}, {0: (5, 2)}, {0: (1, 2)}]


def test_decoding_goes_before_prefill():
    """A long prompt, though older, does not take the rows of those that decode."""
    s = scheduler(rows=6)
    s.add(sequence(0, range(30)))
    assert list(step(s)[0]) == [0]
    young = sequence(1, [1], max_tokens=20)
    young.tokens.append(7)
    young.computed = 1
    s.pool.grow(young.table, 2)
    s.running.append(young)
    assert step(s, k=2)[0] == {1: (1, 2), 0: (3, 0)}


def test_an_older_prefill_does_not_give_way_to_a_younger_one():
    """The young one that decodes goes first, but where it finds no block it is the one to go."""
    s = scheduler(blocks=3, size=4, rows=4)
    s.add(sequence(0, range(8)))
    assert step(s)[0] == {0: (4, 0)}
    young = sequence(1, range(7))
    young.tokens += [7, 7]
    young.computed = 8
    s.pool.grow(young.table, 8)
    s.running.append(young)
    assert step(s) == ({0: (4, 0)}, [1])


# Room


def test_drafts_are_given_up_before_anyone_is_preempted():
    """One free slot, then none: k shrinks to what the blocks hold, down to 0, and nobody goes."""
    s = scheduler(blocks=2, size=4)
    s.add(sequence(0, range(5)))
    assert step(s, k=6) == ({0: (5, 3)}, [])
    assert step(s, k=6) == ({0: (1, 2)}, [])
    assert step(s, k=6) == ({0: (1, 1)}, [])
    assert step(s, k=6) == ({0: (1, 0)}, [])


def test_drafts_of_others_are_given_up_too():
    """Two blocks are full, one is free: the older does not draft into it when the younger needs it for its next token."""
    s = scheduler(blocks=3, size=4)
    s.add(sequence(0, range(3)))
    s.add(sequence(1, range(4)))
    assert step(s) == ({0: (3, 0), 1: (4, 0)}, [])
    plan, preempted = step(s, k=4)
    assert preempted == [] and plan == {0: (1, 0), 1: (1, 3)}


def test_the_youngest_is_preempted_first():
    """Three fill the pool; the oldest needs a block: the third goes, then the second, never the first."""
    s = scheduler(blocks=3, size=4)
    seqs = [sequence(i, range(4)) for i in range(3)]
    for seq in seqs:
        s.add(seq)
    assert step(s) == ({0: (4, 0), 1: (4, 0), 2: (4, 0)}, [])
    plan, preempted = step(s)
    assert (list(plan), preempted) == ([0], [2, 1])
    assert [x.id for x in s.waiting] == [1, 2]  # and they keep their order
    assert [x.preemptions for x in seqs] == [0, 1, 1]
    assert not seqs[1].table and seqs[1].computed == 0 and len(seqs[1].output) == 1  # nothing generated is lost


def test_the_youngest_gives_way_itself():
    """Where nobody is younger, the one that finds no room goes."""
    s = scheduler(blocks=3, size=4)
    for i, n in enumerate((6, 4)):
        s.add(sequence(i, range(n)))
    step(s)
    assert step(s) == ({0: (1, 0)}, [1])


def test_nobody_is_admitted_into_room_that_was_short():
    """After a preemption the waiting wait one step, and the preempted one is first among them."""
    s = scheduler(blocks=3, size=4)
    for i, n in enumerate((6, 4, 1)):
        s.add(sequence(i, range(n), max_tokens=3))
    step(s)
    assert step(s) == ({0: (1, 0)}, [1])
    assert [x.id for x in s.waiting] == [1, 2]
    assert step(s)[0] == {0: (1, 0)}  # its five tokens need two blocks
    assert step(s)[0] == {1: (5, 0), 2: (1, 0)}


def test_waiting_keep_their_order():
    """A head that does not fit is not overtaken by a smaller one behind it."""
    s = scheduler(blocks=4, size=4)
    s.add(sequence(0, range(8), max_tokens=3))
    s.add(sequence(1, range(12), max_tokens=1))
    s.add(sequence(2, range(2), max_tokens=1))
    order = []
    while s.running or s.waiting:
        order += step(s)[0]
    assert list(dict.fromkeys(order)) == [0, 1, 2]


def test_remove():
    """A running or waiting sequence is taken out and its blocks come back; twice does no harm."""
    s = scheduler(blocks=8, seqs=1)
    a, b = sequence(0, range(9)), sequence(1, range(9))
    s.add(a)
    s.add(b)
    step(s)
    for seq in (b, a, a):
        s.remove(seq)
        s.pool.check(x.table for x in s.running)
    assert not s.running and not s.waiting and s.pool.available == 8


# Sharing


def test_a_sibling_waits_for_the_prompt():
    """n = 2: the second is admitted once the first has computed the prompt, and computes only the rest of it."""
    s = scheduler(rows=8, share=True)
    first, second = (sequence(i, range(14), request="same") for i in range(2))
    s.add(first)
    s.add(second)
    assert [step(s)[0] for _ in range(3)] == [{0: (8, 0)}, {0: (6, 0)}, {0: (1, 0), 1: (2, 0)}]
    assert second.table[:3] == first.table[:3] and second.cached == 12 and first.cached == 0


def test_without_sharing_siblings_start_together():
    """Nothing to wait for."""
    s = scheduler(rows=64)
    for i in range(2):
        s.add(sequence(i, range(14), request="same"))
    assert step(s)[0] == {0: (14, 0), 1: (14, 0)}


def test_another_request_shares_what_is_known():
    """The same prompt under another id, later: only the last block is computed; `cached` keeps its first value."""
    s = scheduler(share=True)
    s.add(sequence(0, range(14), max_tokens=1))
    step(s)
    again = sequence(1, range(14), max_tokens=4)
    s.add(again)
    assert step(s)[0] == {1: (2, 0)}
    assert again.cached == 12
    assert (s.pool.queries, s.pool.hits) == (28, 12)
    for _ in range(2):
        step(s)
    s.preempt(again, [])
    assert step(s)[0] == {1: (1, 0)}  # its own first output is shared by now
    assert again.cached == 12 and again.preemptions == 1


def test_a_failed_admission_is_no_lookup():
    """A head that waits for room is not counted as a prefix query at every step."""
    s = scheduler(blocks=4, size=4, share=True)
    s.add(sequence(0, range(8), max_tokens=5))
    s.add(sequence(1, range(50, 62), max_tokens=1))
    for _ in range(4):
        step(s)
    assert [x.id for x in s.waiting] == [1]
    assert s.pool.queries == 8


# Everything at once


@pytest.mark.parametrize("seed", range(12))
def test_simulation(seed):
    """Random arrivals, draft lengths, acceptances and aborts on a small pool: every invariant at every step."""
    rng = Random(seed)
    size = rng.choice((1, 2, 4, 8))
    blocks = -(-60 // size) + rng.randint(0, 8)  # a lone sequence of at most 60 tokens always fits
    s = scheduler(blocks, size, seqs=rng.randint(1, 6), rows=rng.randint(4, 40), share=seed % 3 > 0)
    todo, unfinished, steps, covered, seen = [], {}, 0, {}, Counter()
    for i in range(40):
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 40))]
        for _ in range(rng.choice((1, 1, 2, 3))):
            todo.append(sequence(len(todo), prompt, max_tokens=rng.randint(1, 20), request=f"r{i}"))
    while todo or unfinished:
        steps += 1
        assert steps < 20_000, "no progress"
        for _ in range(min(len(todo), rng.choice((0, 0, 1, 4)))):
            seq = todo.pop(0)
            unfinished[seq.id] = seq
            s.add(seq)
        if unfinished and rng.random() < 0.02:
            s.remove(unfinished.pop(rng.choice(list(unfinished))))
            seen["aborted"] += 1
        lengths = {i: len(x.tokens) for i, x in unfinished.items()}
        wish = {i: rng.randint(0, 9) for i in unfinished}
        chunks, preempted = s.plan(lambda seq, wish=wish: wish[seq.id])
        # nobody lost, nobody twice, budgets kept
        assert Counter(x.id for x in [*s.running, *s.waiting]) == Counter(list(unfinished))
        assert len(s.running) <= s.max_num_seqs and sum(c.count + c.k for c in chunks) <= s.max_rows
        assert len({c.seq.id for c in chunks}) == len(chunks) and not {c.seq.id for c in chunks} & {x.id for x in preempted}
        assert chunks or preempted or not unfinished
        assert all(not x.table and x.computed == 0 for x in s.waiting)
        s.pool.check(x.table for x in s.running)
        seen["preempted"] += len(preempted)
        for x in preempted:
            covered.pop(x.id, None)
        for chunk in chunks:
            seq = chunk.seq
            assert lengths[seq.id] == len(seq.tokens) and chunk.count >= 1 and 0 <= chunk.k <= min(wish[seq.id], seq.remaining - 1)
            assert chunk.samples or chunk.k == 0
            assert len(seq.table) * size >= seq.computed + chunk.count + chunk.k
            if seq.id in covered:  # each chunk starts where the last one left off: nothing fed twice, nothing left out
                assert seq.computed == covered[seq.id]
            seen["chunked"] += not chunk.samples
            seen["drafted"] += chunk.k
            accepted = rng.randint(0, chunk.k)
            seen["rejected"] += chunk.k - accepted
            commit(s, chunk, accepted)
            covered[seq.id] = seq.computed
            if seq.remaining <= 0:
                assert seq.remaining == 0
                del unfinished[seq.id]
                covered.pop(seq.id)
        s.pool.check(x.table for x in s.running)
    assert s.pool.available == blocks
    assert seen["drafted"] and seen["rejected"] and seen["chunked"]


@pytest.mark.parametrize("seed", range(6))
def test_waiting_is_always_in_order_of_arrival(seed):
    """Under pressure, whoever came first is admitted first, again after preemption."""
    rng = Random(100 + seed)
    s = scheduler(blocks=24, size=2, seqs=8, rows=rng.choice((8, 16, 32)))
    preempted = 0
    for i in range(60):
        s.add(sequence(i, range(rng.randint(1, 30)), max_tokens=rng.randint(1, 18)))
    while s.running or s.waiting:
        preempted += len(step(s, k=rng.randint(0, 5), accepted=rng.randint(0, 5))[1])
        assert [x.id for x in s.waiting] == sorted(x.id for x in s.waiting)
    assert preempted > 0


def test_pressure_preempts():
    """The simulation above is not vacuous: on a tight pool preemption, resumption and completion all happen."""
    s = scheduler(blocks=16, size=2, seqs=6)
    seqs = [sequence(i, range(6), max_tokens=20) for i in range(6)]
    for seq in seqs:
        s.add(seq)
    steps = 0
    while s.running or s.waiting:
        step(s, k=3, accepted=steps % 3)
        steps += 1
        assert steps < 500
    assert sum(x.preemptions for x in seqs) > 3 and seqs[0].preemptions == 0
    assert all(len(x.output) == 20 for x in seqs)
