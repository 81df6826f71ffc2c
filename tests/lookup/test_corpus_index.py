"""A corpus index: found by any substring, added to, and refused when it is damaged."""

from __future__ import annotations

import json
import random

import pytest

from headstart.core.errors import ModelError
from headstart.lookup import corpus_build
from headstart.lookup.corpus import Corpus, read_manifest
from headstart.lookup.corpus_build import create, extend

DOCUMENTS = [[1, 2, 3, 4, 5, 6], [7, 2, 3, 4, 9, 9], [2, 3, 4, 5, 1]]


@pytest.fixture
def folder(tmp_path):
    create(tmp_path / "index", "t", "f", 100, DOCUMENTS)
    return tmp_path / "index"


def drafts(folder, context, k=4, least=0.0):
    corpus = Corpus(folder)
    match = corpus.find(context, 16)
    return match and (match.length, corpus.draft(match, k, least))


def test_longest_match_and_the_majority_after_it(folder):
    assert drafts(folder, [8, 8, 7, 2, 3, 4]) == (4, [9, 9])
    assert drafts(folder, [50, 2, 3, 4], k=1) == (3, [5]), "two of three"
    assert drafts(folder, [50, 2, 3, 4], k=1, least=0.7) == (3, [])
    assert drafts(folder, [4, 5, 6]) == (3, []), "drafts end with their document"
    assert drafts(folder, [6, 7]) == (1, [2, 3, 4, 9]), "a match does not reach over the end of a document"
    assert drafts(folder, [50]) is None and drafts(folder, []) is None


@pytest.mark.parametrize("vocab", [40, 70_000])
def test_against_a_naive_search(tmp_path, vocab):
    """Two and three bytes an id, one segment and several."""
    rng = random.Random(vocab)
    words = [rng.randrange(vocab) for _ in range(8)]
    documents = [[rng.choice(words) for _ in range(rng.randrange(1, 80))] for _ in range(30)]
    create(tmp_path / "i", "t", "f", vocab, documents[:20])
    for i in range(20, 30):
        extend(tmp_path / "i", documents[i : i + 1])
    corpus = Corpus(tmp_path / "i")
    assert corpus.manifest.documents == 30 and corpus.manifest.tokens == sum(map(len, documents)) + 30
    assert 1 <= len(corpus.manifest.segments) < 6
    for _ in range(200):
        context = [rng.choice(words) for _ in range(rng.randrange(1, 10))]
        after: dict[int, list] = {}
        for d in documents:
            for n in range(1, len(context) + 1):
                for i in range(len(d) - n + 1):
                    if d[i : i + n] == context[len(context) - n :]:
                        after.setdefault(n, []).append(d[i + n : i + n + 1])
        match = corpus.find(context, 16)
        assert match is not None and match.length == max(after)
        assert corpus.draft(match, 1) in after[match.length]


def test_damage_is_found_when_opened(folder):
    manifest = json.loads((folder / "index.json").read_text())
    ids = next(folder.glob("*.ids"))
    whole = ids.read_bytes()
    ids.write_bytes(whole[:-2])
    with pytest.raises(ModelError, match="should have"):
        Corpus(folder)
    ids.write_bytes(whole)
    for change, words in (({"version": 9}, "version 9"), ({"format": "x"}, "not of a corpus"), ({"segments": [{}]}, "damaged")):
        (folder / "index.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(ModelError, match=words):
            Corpus(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        Corpus(folder)
    (folder / "index.json").unlink()
    with pytest.raises(ModelError, match="interrupted"):
        Corpus(folder)
    with pytest.raises(ModelError, match="no such folder"):
        Corpus(folder / "nothing")


def test_an_interruption_leaves_what_was_there(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = sorted(p.name for p in folder.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(corpus_build, "_order", interrupted)
        with pytest.raises(KeyboardInterrupt):
            extend(folder, [[1, 1, 1]])
        with pytest.raises(KeyboardInterrupt):
            create(folder.parent / "new", "t", "f", 100, DOCUMENTS)
    assert sorted(p.name for p in folder.iterdir()) == before and drafts(folder, [7, 2, 3, 4]) == (4, [9, 9])
    create(folder.parent / "new", "t", "f", 100, DOCUMENTS)
    assert drafts(folder.parent / "new", [7, 2, 3, 4]) == (4, [9, 9])


def test_only_one_writes_at_a_time(folder):
    """An addition while another one tokenizes its files is refused, and neither loses anything."""

    def documents():
        with pytest.raises(ModelError, match="being written"):
            extend(folder, [[1, 1, 1]])
        with pytest.raises(ModelError, match="already"):
            create(folder, "t", "f", 100, DOCUMENTS)
        yield [5, 6, 7]

    before = read_manifest(folder).documents
    extend(folder, documents())
    extend(folder, [[1, 1, 1]])
    assert read_manifest(folder).documents == before + 2


def test_what_cannot_be_indexed(tmp_path, folder):
    with pytest.raises(ModelError, match="already"):
        create(folder, "t", "f", 100, DOCUMENTS)
    with pytest.raises(ModelError, match="no text"):
        create(tmp_path / "empty", "t", "f", 100, [[], []])
    with pytest.raises(ModelError, match="not one of the 100"):
        create(tmp_path / "foreign", "t", "f", 100, [[100]])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("x")
    with pytest.raises(ModelError, match="other files"):
        create(tmp_path / "mine", "t", "f", 100, DOCUMENTS)
