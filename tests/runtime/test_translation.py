"""Two tokenizers: what both can say, and how the text of one reads in the other."""

from __future__ import annotations

import pytest

from headstart.runtime.translation import Translation, piece_bytes
from tests import tiny
from tests.reference import letters_tokenizer


def sentencepiece():
    """A tokenizer that writes a space as ▁ and unknown characters as bytes, as Llama 2 and Gemma do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcdefghijt", "ab", "▁a", "▁ab", "▁the", "th", "he"]
    merges = [("a", "b"), ("▁", "a"), ("▁a", "b"), ("t", "h"), ("h", "e")]
    pieces = [*pieces, "h"] if "h" not in pieces else pieces
    merges = [m for m in merges if all(x in pieces for x in m)]
    inner = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, unk_token="<unk>", byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def between(target, draft) -> Translation:
    return Translation(target, draft, len(target), len(draft))


def text_of(tokenizer, ids) -> str:
    pieces = piece_bytes(tokenizer)
    return b"".join(pieces.get(i, b"") for i in ids).decode(errors="replace")


def test_pieces_are_bytes_whatever_they_are_written_in():
    byte_level, other = piece_bytes(tiny.tokenizer()), piece_bytes(sentencepiece())
    assert b" cat" in byte_level.values() and b"the" in byte_level.values() and {bytes([b]) for b in range(256)} <= set(byte_level.values())
    assert b" the" in other.values() and b" ab" in other.values() and b"\xc3" in other.values()
    assert not any(b"<" in data for data in other.values() if len(data) > 1), "special tokens are not text"


def test_same_ids_have_the_same_bytes_and_the_ends_are_paired():
    for target, draft in (
        (tiny.tokenizer(), sentencepiece()),
        (sentencepiece(), letters_tokenizer()),
        (letters_tokenizer(), tiny.tokenizer()),
    ):
        t = between(target, draft)
        assert len(set(t.same.values())) == len(t.same) > 20
        for ours, theirs in t.same.items():
            if ours in t.ours:
                assert t.ours[ours] == t.theirs[theirs]
            else:
                assert (ours, theirs) == (target.eos_token_id, draft.eos_token_id)
        assert target.eos_token_id in t.same
        assert 0 < t.shared() <= 1


TEXTS = ["the cat sat on the mat", "def ab(a):\n    return 12", "a\u00e9\u4e2d\U0001f600 b", " ab  abc", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_read_by_the_draft_is_the_same_text(text):
    """As a prompt, and token by token; characters that a tokenizer splits into bytes included."""
    target, draft = tiny.tokenizer(), sentencepiece()
    t, ids = between(target, draft), target(text, add_special_tokens=False).input_ids
    assert text_of(draft, t.prompt(ids)) == text
    spelled = [i for token in ids for i in t.spelled(token)]
    assert text_of(draft, spelled) == text
    chat = [1, *ids, 2, *ids]  # special tokens that the draft does not have leave no trace
    assert text_of(draft, t.prompt(chat)) == text + text


def test_what_the_draft_says_in_the_targets_tokens():
    target, draft = tiny.tokenizer(), sentencepiece()
    t = between(target, draft)
    say = lambda text: [t.by_bytes[c.encode()] for c in text]  # noqa: E731
    ids = lambda text: target(text, add_special_tokens=False).input_ids  # noqa: E731
    assert t.said(ids("the cat"), say(" ab"), 10) == ids(" ab")
    assert t.said(ids("th"), say("e"), 10) == ids("e"), "where the boundary would merge, the drafted text alone"
    assert t.said([], say("ab"), 10) == ids("ab")
    assert t.said(ids("the"), [*say("ab"), draft.eos_token_id, *say("b")], 10) == ids("ab"), "nothing behind its end"
    assert t.said(ids("the"), [t.by_bytes[b"\xc3"]], 10) == [], "half a character says nothing"
    half = ids("é")[:1]
    assert t.said(half, say("a"), 10) == ids("a"), "nor can what follows one be joined to it"
