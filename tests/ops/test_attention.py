"""Paged attention against a dense computation in fp64: any block table, any batch, and nothing of what lies beyond a length."""

from __future__ import annotations

import itertools
import math
import random
from array import array

import pytest
import torch

from headstart.ops.attention import FOLD_ROWS, KVCache, Layout, Span, attend, causal_mask, slot_range

CPU = torch.device("cpu")
HEADS = {"MHA": (4, 4), "GQA": (6, 2), "MQA": (4, 1)}
DIM, SIZE = 8, 4  # of a head, of a block


def naive_slots(table, size: int, start: int, stop: int) -> list[int]:
    return [table[i // size] * size + i % size for i in range(start, stop)]


def as_list(slots) -> list[int]:
    return list(range(slots.start, slots.stop)) if isinstance(slots, slice) else slots.tolist()


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of the last rows of a text: q [R, heads, d], k and v [S, kv_heads, d] -> [R, heads * d]."""
    rows, heads, _ = q.shape
    length, group = k.shape[0], heads // k.shape[1]
    out = torch.empty_like(q)
    for r in range(rows):
        seen = length - rows + r + 1
        for h in range(heads):
            weights = torch.softmax(k[:seen, h // group] @ q[r, h] * scale, 0)
            out[r, h] = weights @ v[:seen, h // group]
    return out.reshape(rows, -1)


def run(texts, heads: int, kv_heads: int, dtype=torch.float64, seed: int = 0, scale: float | None = None, layers: int = 2):
    """One pass over `texts` = (block table, length, new rows); everything that no text owns is NaN. Returns (got, wanted)."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
    blocks = 1 + max(max(table) for table, _, _ in texts)
    cache = KVCache(layers, blocks * SIZE, kv_heads, DIM, dtype, CPU)
    for t in (*cache.keys, *cache.values):
        t.fill_(float("nan"))
    layer = layers - 1
    spans, queries, new, wanted, fresh = [], [], [], [], []
    for table, length, rows in texts:
        q, k, v = draw(rows, heads, DIM), draw(length, kv_heads, DIM), draw(length, kv_heads, DIM)
        slots = torch.tensor(naive_slots(table, SIZE, 0, length))
        old = length - rows
        cache.write(layer, slots[:old], k[:old], v[:old])
        new.append(slots[old:])
        fresh.append((k[old:], v[old:]))
        at = sum(len(x) for x in queries)
        spans.append(Span(slice(at, at + rows), length, slot_range(table, SIZE, 0, length), dtype, CPU))
        queries.append(q)
        wanted.append(dense(q.double(), k.double(), v.double(), scale or 1 / math.sqrt(DIM)))
    slots = torch.cat(new)
    cache.write(layer, slots, torch.cat([k for k, _ in fresh]), torch.cat([v for _, v in fresh]))
    return attend(torch.cat(queries), cache, layer, Layout(array("q", slots.tolist()), spans, CPU), scale), torch.cat(wanted)


def scattered(r: random.Random, *lengths: int) -> list[list[int]]:
    """Block tables for texts of these lengths out of one shuffled pool, with some blocks nobody owns."""
    need = [-(-n // SIZE) for n in lengths]
    free = list(range(sum(need) + 5))
    r.shuffle(free)
    return [[free.pop() for _ in range(n)] for n in need]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("rows", [1, 2, 5, FOLD_ROWS, FOLD_ROWS + 1, 45])
@pytest.mark.parametrize("adjacent", [True, False], ids=["adjacent", "scattered"])
def test_one_sequence(kind, rows, adjacent):
    """From a decoding row to a chunk wider than the fold, at lengths around the border of a block."""
    for extra in (0, 1, 3, 7):
        length = rows + extra
        table = list(range(2, 2 + -(-length // SIZE))) if adjacent else scattered(random.Random(rows), length)[0]
        got, wanted = run([(table, length, rows)], *HEADS[kind], seed=rows + extra)
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("seed", range(6))
def test_ragged_batch(kind, seed):
    """Prefill chunks, decoding rows and drafts of several texts in one pass; NaN fills every slot that none of them owns."""
    r = random.Random(seed)
    shapes = [(n := r.randrange(1, 60), r.choice((1, 1, 4, r.randrange(1, n + 1), n))) for _ in range(r.randrange(2, 7))]
    shapes = [(n, min(rows, n)) for n, rows in shapes]
    tables = scattered(r, *(n for n, _ in shapes))
    texts = [(table, n, rows) for table, (n, rows) in zip(tables, shapes, strict=True)]
    got, wanted = run(texts, *HEADS[kind], seed=seed)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


def test_shared_blocks():
    """Two texts with the same first block, as after a prefix hit: each reads it, and its own tail."""
    generator = torch.Generator().manual_seed(0)
    cache = KVCache(1, 7 * SIZE, 2, DIM, torch.float64, CPU)
    for t in (cache.keys[0], cache.values[0]):
        t.copy_(torch.randn(t.shape, generator=generator, dtype=torch.float64))
    q = torch.randn(2, 4, DIM, generator=generator, dtype=torch.float64)
    tables = ([5, 1], [5, 3])
    spans = [Span(slice(i, i + 1), 6, slot_range(t, SIZE, 0, 6), torch.float64, CPU) for i, t in enumerate(tables)]
    got = attend(q, cache, 0, Layout(array("q", (0, 0)), spans, CPU))
    for i, t in enumerate(tables):
        at = naive_slots(t, SIZE, 0, 6)
        torch.testing.assert_close(got[i : i + 1], dense(q[i : i + 1], cache.keys[0][at], cache.values[0][at], DIM**-0.5))


@pytest.mark.parametrize("rows", [3, 40])
def test_scale_and_a_table_longer_than_the_text(rows):
    table = [*scattered(random.Random(1), rows + 9)[0], 0]
    got, wanted = run([(table, rows + 2, rows)], 6, 2, scale=0.7)
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("rows", [1, 4, 40])
def test_other_dtypes(dtype, tolerance, rows):
    long, short = scattered(random.Random(2), rows + 6, 2)
    got, wanted = run([(long, rows + 6, rows), (short, 2, 1)], 4, 2, dtype)
    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


def test_three_new_rows_on_five_cached():
    """The mask aligns the last row with the last key (aligned to the other corner, row 0 would see one key of six)."""
    mask = causal_mask(3, 8, torch.float64, CPU)
    assert mask.eq(0).tolist() == [[True] * 6 + [False] * 2, [True] * 7 + [False], [True] * 8]
    assert bool(mask[mask != 0].eq(float("-inf")).all())


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 9), (2, 2), (4, 4), (4, 11), (40, 41)])
def test_causal_mask(rows, length):
    mask = causal_mask(rows, length, torch.float32, CPU)
    if rows == 1:
        assert mask is None
        return
    seen = [[j <= length - rows + i for j in range(length)] for i in range(rows)]
    assert mask.dtype is torch.float32 and mask.eq(0).tolist() == seen


def test_slot_range_equals_the_definition():
    """A slice exactly where the blocks touched are adjacent; the same slots either way, from any start."""
    r, kinds = random.Random(0), set()
    for _ in range(400):
        size = r.choice((1, 2, 4, 16))
        table = r.sample(range(12), 6) if r.random() < 0.5 else list(range(r.randrange(6), 12))
        if r.random() < 0.3:
            table[-1] = 40
        start = r.randrange(len(table) * size)
        stop = r.randrange(start + 1, len(table) * size + 1)
        slots = slot_range(table, size, start, stop)
        assert as_list(slots) == naive_slots(table, size, start, stop)
        touched = table[start // size : (stop - 1) // size + 1]
        assert isinstance(slots, slice) == all(b - a == 1 for a, b in itertools.pairwise(touched))
        kinds.add(type(slots))
    assert kinds == {slice, array}
