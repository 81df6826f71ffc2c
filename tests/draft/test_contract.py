"""What every drafter keeps, and the lookups of `ngram`."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

import headstart.draft
from headstart.core.methods import METHODS
from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.draft.ngram import NgramDrafter
from headstart.runtime.runner import Feed, Runner
from tests.doubles import DRAFTERS, EchoModel, make_drafter


def sequence(tokens, ident=0, seed=1, temperature=1.0):
    return Sequence(ident, str(ident), 0, SamplingParams(temperature=temperature), list(tokens), len(tokens), seed, max_len=100_000)


def test_every_file_is_a_method_and_every_method_a_file():
    files = {p.stem for p in Path(headstart.draft.__file__).parent.glob("*.py")} - {"__init__", "base", "costs", "guard", "translated"}
    assert files == set(METHODS)
    for name in files:
        assert callable(importlib.import_module(f"headstart.draft.{name}").build)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_never_more_than_asked_and_only_real_ids(kind):
    target = EchoModel(vocab=30)
    drafter = make_drafter(kind, target)
    drafter.allocate(200, 4)
    target_runner = Runner(target, 200, 4, 30, 4096)
    drafter.attach(target_runner)
    rng, at = random.Random(1), 0
    for step in range(30):
        chunks = []
        for i in range(3):
            seq = sequence([rng.randrange(30) for _ in range(rng.randrange(1, 20))], ident=step * 3 + i)
            k = rng.randrange(6)
            blocks = -(-(len(seq.tokens) + k) // 4)
            seq.table = [(at + b) % 200 for b in range(blocks)]
            at += blocks
            seq.computed = len(seq.tokens) - 1
            if seq.computed:
                target_runner.forward([Feed(seq.tokens[:-1], 0, seq.table)])
            chunks.append(Chunk(seq, 1, k))
        before = [list(c.seq.tokens) for c in chunks]
        for chunk, proposal in zip(chunks, drafter.propose(chunks), strict=True):
            assert len(proposal.tokens) <= chunk.k
            assert all(0 <= t < 30 for t in proposal.tokens)
            if proposal.probs is not None:
                assert proposal.probs.shape == (len(proposal.tokens), 30)
                assert all(proposal.probs[i, t] > 0 for i, t in enumerate(proposal.tokens)), "drawn from another law than reported"
                assert abs(proposal.probs.sum(-1) - 1).max() < 1e-12
        assert before == [c.seq.tokens for c in chunks], "a drafter touched committed tokens"
        drafter.observe(chunks)
        for c in chunks:
            drafter.forget(c.seq)


def lookup(tokens, k=4, shortest=1, longest=3):
    return NgramDrafter(shortest, longest).lookup(sequence(tokens), k)


def test_ngram_takes_the_longest_match_before_the_most_recent():
    assert lookup([1, 2, 3, 9, 9, 3, 8, 8, 1, 2, 3])[:1] == [9], "three tokens match at the front"
    assert lookup([5, 3, 7, 5, 3, 8, 6, 3])[:1] == [8], "of two equally long matches, the later one"
    assert lookup([1, 2, 3, 4]) == []
    assert lookup([7]) == []
    assert lookup([1, 2, 1], shortest=2, longest=2) == []


def test_ngram_goes_on_periodically():
    assert lookup([1, 2, 3, 1, 2, 3], k=8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert lookup([4, 4], k=3) == [4, 4, 4]


def test_ngram_against_a_naive_search():
    rng = random.Random(3)
    drafter = NgramDrafter(1, 3)
    seq = sequence([rng.randrange(6) for _ in range(5)])
    for _ in range(200):
        tokens = seq.tokens

        def naive(tokens=tokens):
            for n in (3, 2, 1):
                for start in range(len(tokens) - n - 1, -1, -1):
                    if n < len(tokens) and tokens[start : start + n] == tokens[-n:]:
                        return tokens[start + n]
            return None

        found = drafter.lookup(seq, 1)
        assert (found[0] if found else None) == naive()
        seq.tokens.extend(rng.randrange(6) for _ in range(rng.randrange(1, 4)))


def test_ngram_work_per_step_does_not_grow_with_the_context():
    """After the prompt is in, a step touches its new tokens only, at 50,000 tokens as at 50."""

    class Counting(list):
        reads = 0

        def __getitem__(self, i):
            Counting.reads += 1
            return super().__getitem__(i)

    rng = random.Random(0)
    costs = []
    for length in (50, 50_000):
        seq = sequence([rng.randrange(1000) for _ in range(length)])
        seq.tokens = Counting(seq.tokens)
        drafter = NgramDrafter(2, 4)
        drafter.lookup(seq, 5)
        Counting.reads = 0
        for _ in range(20):
            seq.tokens.append(rng.randrange(1000))
            drafter.lookup(seq, 5)
        costs.append(Counting.reads)
    assert costs[1] <= costs[0] + 200


def test_ngram_never_proposes_another_requests_text():
    drafter = NgramDrafter(1, 3)
    drafter.lookup(sequence([11, 12, 13, 14, 11, 12], ident=1), 4)
    assert drafter.lookup(sequence([11, 12], ident=2), 4) == []
    drafter.forget(sequence([], ident=1))
    assert set(drafter.indexes) == {2}
