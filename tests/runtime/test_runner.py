"""The runner: what sequences feed becomes one pass, and each gets back the rows it asked for."""

from __future__ import annotations

import random

import pytest
import torch

from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Runner
from tests import tiny
from tests.doubles import EchoModel

CPU = torch.device("cpu")
SIZE = 4


def wanted(model: EchoModel, text: list[int], rows: int) -> torch.Tensor:
    """Logits after each of the last tokens of a text."""
    out = [model.logits(tuple(text[: len(text) - rows + i + 1]))[: model.vocab] for i in range(rows)]
    return torch.stack(out) if out else torch.empty(0, model.vocab, dtype=model.dtype)


def test_ragged_feeds():
    """Chunks that want no logits, decoding rows, drafts with several rows, on scattered and adjacent blocks, many passes long."""
    r = random.Random(0)
    model = EchoModel(padding=5)
    runner = Runner(model, 64, SIZE, model.vocab, 999)
    free = list(range(64))
    r.shuffle(free)
    texts: list[list[int]] = [[] for _ in range(4)]
    tables: list[list[int]] = [[40 + i * 6] for i in range(4)]
    seen = set()
    for _ in range(25):
        feeds, after = [], []
        for i in r.sample(range(4), r.randrange(1, 5)):
            new = [r.randrange(model.vocab) for _ in range(r.choice((1, 1, 3, 6)))]
            start = len(texts[i]) - (r.randrange(3) if len(texts[i]) > 3 else 0)  # sometimes over rejected drafts
            texts[i] = texts[i][:start] + new
            while len(tables[i]) * SIZE < len(texts[i]):
                nxt = tables[i][-1] + 1
                taken = {b for t in tables for b in t}
                tables[i].append(nxt if nxt < 64 and nxt not in taken and i % 2 else next(b for b in free if b not in taken))
            rows = r.randrange(len(new) + 1)
            seen.add((len(new), rows))
            feeds.append(Feed(new, start, tables[i], rows))
            after.append(wanted(model, texts[i], rows))
        if sum(len(t) for t in tables) > 55:
            break
        passes = model.passes
        got = runner.forward(feeds)
        assert model.passes == passes + 1 and len(got) == len(feeds)
        for a, b in zip(got, after, strict=True):
            assert a.shape == b.shape and torch.equal(a, b)
    assert {(1, 0), (1, 1), (3, 3)} <= seen


@pytest.mark.parametrize("logits", [0, 1, 2, 5])
def test_only_the_rows_asked_for(logits):
    model = EchoModel()
    runner = Runner(model, 4, SIZE, model.vocab, 99)
    text = [3, 1, 4, 1, 5]
    (got,) = runner.forward([Feed(text, 0, [2, 0], logits)])
    assert torch.equal(got, wanted(model, text, logits))
    assert model.rows == 5


def test_the_head_is_computed_for_those_rows_only(monkeypatch, tmp_path):
    """The head is a third of a small model: a prefill chunk must not pay it."""
    tiny.write_llama(tmp_path)
    model = load_model(open_checkpoint(str(tmp_path)), torch.float64, CPU)
    head, fed = model.head, []
    model.head = lambda x: fed.append(len(x)) or head(x)
    runner = Runner(model, 8, SIZE, 97, 99)
    a, b, c = runner.forward([Feed([1, 2, 3, 4, 5], 0, [0, 1], 0), Feed([1, 2, 3], 0, [2], 2), Feed([7], 0, [3], 1)])
    assert fed == [3] and (len(a), len(b), len(c)) == (0, 2, 1)
    assert [len(x) for x in runner.forward([Feed([6, 7], 5, [0, 1], 0)])] == [0]
    assert fed == [3, 0]


def test_rows_of_padding_are_cut(tmp_path):
    """The padded rows have the largest logits: they can be neither proposed nor emitted, for they are not there."""
    theirs = tiny.write_llama(tmp_path, vocab=90, pad_rows=7, tied=False)
    model = load_model(open_checkpoint(str(tmp_path)), torch.float64, CPU)
    text = [5, 6, 7, 8]
    plain = tiny.logits_of(theirs, text)
    assert int(plain[-1].argmax()) >= 90
    (got,) = Runner(model, 4, SIZE, 90, 99).forward([Feed(text, 0, [3], 4)])
    assert got.shape == (4, 90)
    torch.testing.assert_close(got, plain[:, :90], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "out"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_logits_are_fp32_or_wider(dtype, out):
    model = EchoModel(dtype=dtype)
    assert Runner(model, 2, SIZE, model.vocab, 9).forward([Feed([1, 2], 0, [1], 2)])[0].dtype is out


def test_no_gradients(tmp_path):
    tiny.write_llama(tmp_path)
    model = load_model(open_checkpoint(str(tmp_path)), torch.float64, CPU)
    assert not Runner(model, 2, SIZE, 97, 9).forward([Feed([1, 2], 0, [1], 2)])[0].requires_grad


def test_the_cache_has_room_for_every_block():
    model = EchoModel()
    runner = Runner(model, 7, SIZE, model.vocab, 9)
    assert len(runner.cache.keys[0]) == 28
    runner.forward([Feed([1, 2, 3, 4], 0, [6], 1)])  # the last block
