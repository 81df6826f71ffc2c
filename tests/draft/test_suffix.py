"""The suffix drafter: how long drafts are, what indexing costs a step, and whose text is looked into."""

from __future__ import annotations

import random

import pytest

from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.draft import suffix
from headstart.draft.corpus import CorpusDrafter
from headstart.draft.suffix import SuffixDrafter
from headstart.lookup import pool
from headstart.lookup.corpus import Corpus
from headstart.lookup.corpus_build import create
from headstart.lookup.pool import Pool, Reader


def sequence(tokens, ident=0, prompt_len=None, **params):
    prompt_len = len(tokens) if prompt_len is None else prompt_len
    return Sequence(ident, str(ident), 0, SamplingParams(**params), list(tokens), prompt_len, 1, max_len=100_000)


def propose(drafter, seq, k):
    return drafter.propose([Chunk(seq, 1, k)])[0].tokens


def test_length_follows_the_match():
    text = list(range(50))
    for match, k, expected in ((1, 40, 2), (3, 40, 6), (12, 40, 24), (12, 5, 5)):
        drafts = propose(SuffixDrafter(2.0, 0.0), sequence([*text, 99, *text[5 : 5 + match]]), k)
        assert drafts == text[5 + match : 5 + match + expected]


def test_a_step_indexes_a_bounded_number_of_tokens():
    """A prompt that no prefill announced is caught up over steps, shared by the batch, and drafts come once it is."""
    prompt = [*range(700), *range(700)]
    first, second = sequence(prompt, 1), sequence(prompt, 2)
    drafter = SuffixDrafter(4.0, 0.1)
    for step in range(1, 7):
        drafter.observe([Chunk(first, 1), Chunk(second, 1)])
        proposals = drafter.propose([Chunk(first, 1, 4), Chunk(second, 1, 4)])
        assert sum(a.size for a in drafter.automata.values()) == min(step * suffix._CATCH_UP, 2 * len(prompt))
    assert [p.tokens for p in proposals] == [[0, 1, 2, 3]] * 2


def test_prefill_is_indexed_as_it_is_fed():
    seq = sequence([*range(700), *range(700)])
    drafter = SuffixDrafter(4.0, 0.1)
    for step in range(1, 4):
        drafter.observe([Chunk(seq, 700)])
        assert drafter.automata[0].size == min(1400, step * suffix._CATCH_UP)
    off = sequence(range(700), 5, num_speculative_tokens=0)
    drafter.observe([Chunk(off, 700)])
    assert 5 not in drafter.automata, "a request without drafts is not indexed"


def test_no_request_sees_anothers_text():
    drafter = SuffixDrafter(4.0, 0.0)
    a, b = sequence([11, 12, 13, 14, 11, 12], 1), sequence([11, 12], 2)
    assert propose(drafter, a, 2) == [13, 14] and propose(drafter, b, 2) == []
    a.finish_reason = "stop"
    drafter.forget(a)
    assert set(drafter.automata) == {2} and propose(drafter, sequence([11, 12], 3), 2) == []


def test_shared_looks_into_finished_outputs():
    drafter = SuffixDrafter(4.0, 0.0, Pool(10))
    a = sequence([1, 2, 11, 12, 13, 14], 1, prompt_len=2)
    assert propose(drafter, a, 2) == []
    drafter.forget(a)  # preempted, not finished
    assert propose(drafter, sequence([11, 12], 2), 4) == []
    a.finish_reason = "stop"
    drafter.forget(a)
    b = sequence([7, 11, 12], 3)
    assert propose(drafter, b, 4) == [13, 14]
    assert propose(drafter, sequence([1], 4), 4) == [], "prompts are not shared"
    b.tokens += [13]
    assert propose(drafter, b, 4) == [14]


def test_a_reader_keeps_up_with_a_pool_that_grows_and_forgets(monkeypatch):
    """A reader that follows step by step finds what a new one finds, through parted states and new generations."""
    monkeypatch.setattr(pool, "_TOKENS", 60)
    rng = random.Random(4)
    shared, text = Pool(7), []
    reader = Reader(shared)
    for _ in range(300):
        if rng.random() < 0.4:
            shared.add([rng.randrange(3) for _ in range(rng.randrange(1, 12))])
        text.append(rng.randrange(3))
        reader.follow(text)
        fresh = Reader(shared)
        fresh.follow(text)
        assert reader.length == fresh.length and reader.draft(4, 0.0) == fresh.draft(4, 0.0)
        assert all(t >= 0 for t in reader.draft(20, 0.0))
    assert sum(a.size for a in shared.generations) <= 140


@pytest.fixture
def corpus(tmp_path):
    create(tmp_path / "i", "t", "f", 100, [[50, 51, 52, 53, 54, 55], [7, 8, 9, 70, 71]])
    return Corpus(tmp_path / "i")


def test_corpus_or_context_whichever_matches_longer(corpus):
    drafter = CorpusDrafter(corpus, SuffixDrafter(4.0, 0.0))
    assert propose(drafter, sequence([1, 50, 51], 1), 3) == [52, 53, 54]
    assert propose(drafter, sequence([1, 51], 2), 3) == [], "one token of a corpus says nothing"
    assert propose(drafter, sequence([8, 9, 30, 8, 9], 3), 3) == [30, 8, 9], "equal: the request's own text"
    assert propose(drafter, sequence([8, 9, 30, 7, 8, 9], 4), 2) == [70, 71], "the corpus matches longer"
    assert propose(drafter, sequence([1, 7, 8, 9, 30, 1, 7, 8, 9], 5), 2) == [30, 1], "the context matches longer"
    drafter.forget(sequence([], 1))
    assert 1 not in drafter.own.automata
