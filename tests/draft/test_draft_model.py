"""A draft model that reads ahead draws what it would have drawn without, in fewer passes."""

from __future__ import annotations

import random

import pytest
import torch

from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.runtime.runner import Runner
from tests.doubles import EchoModel, make_drafter

VOCAB, K = 12, 6


def drafted(kind: str, texts: list[list[int]], temperature: float, ahead: bool):
    """(proposals over a few steps, passes of the drafting model); the text goes on with what was drafted and a token that was not."""
    target = EchoModel(vocab=VOCAB)
    drafter = make_drafter(kind, target)
    if not ahead:
        drafter.guide = None
    drafter.allocate(200, 4)
    drafter.attach(Runner(target, 200, 4, VOCAB, 4096))
    passes = []
    forward = drafter.runner.forward
    drafter.runner.forward = lambda feeds: passes.append(sum(len(f.tokens) for f in feeds)) or forward(feeds)
    params = SamplingParams(temperature=temperature)
    seqs = [Sequence(i, str(i), 0, params, list(t), len(t), 7 + i, max_len=4096) for i, t in enumerate(texts)]
    for i, seq in enumerate(seqs):
        seq.table = list(range(i * 40, i * 40 + 40))
    proposals = []
    for step in range(4):
        for seq in seqs:
            seq.computed = len(seq.tokens) - 1
        chunks = [Chunk(s, 1, K) for s in seqs]
        proposals += drafter.propose(chunks)
        for seq, p in zip(seqs, proposals[-len(seqs) :], strict=True):
            seq.tokens += [*p.tokens[: step + 1], (sum(p.tokens) + step) % VOCAB]
        drafter.observe(chunks)
    return proposals, passes


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["model", "self", "greedy-model", "adversary"])
def test_the_same_drafts_and_laws_in_fewer_passes(kind, temperature):
    rng = random.Random(3)
    saved = 0
    for text in ([1, 2, 3, 4] * 5, [5] * 9, [rng.randrange(VOCAB) for _ in range(40)], [7]):
        plain, often = drafted(kind, [text], temperature, ahead=False)
        ahead, seldom = drafted(kind, [text], temperature, ahead=True)
        for a, b in zip(plain, ahead, strict=True):
            assert a.tokens == b.tokens and a.odds == b.odds
            assert (a.probs is None) == (b.probs is None)
            assert a.probs is None or torch.equal(a.probs, b.probs)
        saved += len(often) - len(seldom)
        assert len(seldom) <= len(often)
    assert saved > 0, "no guess was ever right"


def test_a_large_batch_does_not_guess():
    texts = [[1, 2, 3, 4] * 5 for _ in range(5)]
    _, plain = drafted("self", texts, 0.0, ahead=False)
    _, ahead = drafted("self", texts, 0.0, ahead=True)
    assert plain == ahead, "rows of a large pass are not free"
