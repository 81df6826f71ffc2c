"""Tokenizers: found, named, compared id by id; and which draft may serve which target."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import AutoTokenizer

from headstart.core.config import SpeculativeConfig
from headstart.core.errors import ModelError
from headstart.draft.base import DraftContext
from headstart.draft.draft_model import build
from headstart.draft.translated import TextDrafter, TokenDrafter
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.tokenizer import first_difference, load_tokenizer, open_tokenizer, real_vocab
from tests import tiny
from tests.reference import letters_tokenizer

CPU = torch.device("cpu")
VOCAB = len(tiny.vocabulary()[0])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "model"
    tiny.write_llama(folder, vocab=VOCAB)
    tiny.write_tokenizer(folder)
    return folder


def test_the_tokenizer_of_a_directory(made):
    tokenizer = load_tokenizer(open_checkpoint(str(made)))
    assert tokenizer.decode(tokenizer.encode("the cat 中 😀")) == "the cat 中 😀"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False).startswith("<|im_start|>user\na")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text", "mistral", "gpt2", "nobody_knows"])
@pytest.mark.parametrize("named", ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "GPT2Tokenizer", None])
def test_the_class_is_the_one_that_transformers_chooses(made, tmp_path, kind, named):
    """Whether or not it reads the whole config for that."""
    folder = shutil.copytree(made, tmp_path / "model")
    tiny.edit_json(folder / "config.json", model_type=kind)
    tiny.edit_json(folder / "tokenizer_config.json", tokenizer_class=named)
    ours, theirs = open_tokenizer(str(folder)), AutoTokenizer.from_pretrained(str(folder))
    assert type(ours) is type(theirs) and ours.get_vocab() == theirs.get_vocab()
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()


def test_a_tokenizer_by_name(made, tmp_path):
    """A directory or a GGUF file beside the weights, and before the checkpoint's own."""
    tiny.write_tokenizer(tmp_path / "other", words=("cat",))
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), words=("cat",))
    checkpoint = open_checkpoint(str(made))
    for named in ("other", "m.gguf"):
        tokenizer = load_tokenizer(checkpoint, str(tmp_path / named))
        assert first_difference(tokenizer, tiny.tokenizer(("cat",))) is None
        assert "cat" in tokenizer.get_vocab() and "Ġcat" not in tokenizer.get_vocab()
    gguf = open_checkpoint(str(tmp_path / "m.gguf"))
    assert "Ġcat" in load_tokenizer(gguf, str(made)).get_vocab()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"version": "1.0"}'])
def test_a_broken_tokenizer(made, tmp_path, content):
    folder = shutil.copytree(made, tmp_path / "model")
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match="pass tokenizer="):
        load_tokenizer(open_checkpoint(str(folder)))


def test_no_tokenizer_at_all(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="pass tokenizer="):
        load_tokenizer(open_checkpoint(str(folder)))


def test_an_error_without_words(made, monkeypatch):
    """Some exceptions have no message: still one line for the user."""
    import transformers

    def fail(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ModelError, match="AssertionError"):
        load_tokenizer(open_checkpoint(str(made)))


@pytest.mark.parametrize(("rows", "ids"), [(VOCAB, VOCAB), (VOCAB + 64, VOCAB), (VOCAB - 5, VOCAB - 5)])
def test_real_vocab(rows, ids):
    """Padding of the embedding has no meaning; ids beyond the embedding cannot be computed."""
    assert real_vocab(tiny.tokenizer(), rows) == ids


def test_real_vocab_counts_added_tokens():
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["<new>"])
    assert real_vocab(tokenizer, 1000) == VOCAB + 1


def test_first_difference_names_the_id():
    target = tiny.tokenizer()
    assert first_difference(target, tiny.tokenizer()) is None
    difference = first_difference(target, tiny.tokenizer(swap=(100, 70)))
    assert (
        "id 70 " in difference
        and repr(target.convert_ids_to_tokens(70)) in difference
        and repr(target.convert_ids_to_tokens(100)) in difference
    )
    shorter = tiny.tokenizer(tiny.WORDS[:-1])
    assert f"id {len(shorter)} " in first_difference(target, shorter) and "None" in first_difference(target, shorter)
    assert f"id {len(shorter)} " in first_difference(shorter, target)


# Pairs


def context(**changes) -> tuple[DraftContext, list[str]]:
    notes: list[str] = []
    given = {"tokenizer": tiny.tokenizer(), "vocab": VOCAB, "dtype": torch.float32, "device": CPU, "max_rows": 64}
    given |= {"target_parameters": 10**6, "hf_token": None, "note": notes.append}
    return DraftContext(**(given | changes)), notes


def spec(folder, **options) -> SpeculativeConfig:
    return SpeculativeConfig(method="draft_model", model=str(folder), **options)


def test_a_fitting_draft(made):
    given, notes = context()
    drafter = build(spec(made), given)
    assert (drafter.vocab, drafter.max_len, notes) == (VOCAB, 128, [])
    assert build(spec(made, max_model_len=32), given).max_len == 32
    assert build(spec(made, max_model_len=10_000), given).max_len == 128


def test_a_padded_draft_fits(tmp_path):
    """64 more rows that no tokenizer knows: sizes differ, ids do not."""
    tiny.write_llama(tmp_path, vocab=VOCAB, pad_rows=64)
    tiny.write_tokenizer(tmp_path)
    assert build(spec(tmp_path), context()[0]).vocab == VOCAB


def test_a_gguf_draft_fits(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), "Q8_0")
    given, notes = context()
    assert build(spec(tmp_path / "m.gguf"), given).vocab == VOCAB
    assert len(notes) == 1 and "dequantised" in notes[0]


def test_a_draft_with_permuted_ids_is_translated_or_refused(tmp_path):
    """Same size, other meaning: the text would be fine and the acceptance a mystery."""
    tiny.write_llama(tmp_path, vocab=VOCAB)
    tiny.write_tokenizer(tmp_path, swap=(70, 100))
    with pytest.raises(ModelError, match=r"id 70 .*use_heterogeneous_vocab"):
        build(spec(tmp_path, use_heterogeneous_vocab=False), context()[0])
    given, notes = context()
    drafter = build(spec(tmp_path), given)
    assert isinstance(drafter, TokenDrafter) and drafter.translation.same[70] == 100 and drafter.translation.same[100] == 70
    assert "id 70 " in notes[0] and "100 % of everyday text" in notes[1] and "token by token" in notes[1]


def test_a_draft_with_another_vocabulary_is_translated(tmp_path):
    """By tokens where most are common, else by text; a line says so. Ids that the model has no row for are nobody's."""
    tiny.write_llama(tmp_path, vocab=VOCAB - 3)
    tiny.write_tokenizer(tmp_path, words=("dog", "Ġdog"))
    given, notes = context()
    drafter = build(spec(tmp_path), given)
    assert isinstance(drafter, TokenDrafter) and "token by token" in notes[-1]
    assert drafter.vocab <= VOCAB - 3 and max(drafter.translation.same.values()) < drafter.vocab
    letters = tmp_path / "letters"
    letters.mkdir()
    tokenizer = letters_tokenizer()
    tiny.write_llama(letters, vocab=len(tokenizer))
    tokenizer.save_pretrained(letters)
    given, notes = context()
    assert isinstance(build(spec(letters), given), TextDrafter) and "tokenised anew" in notes[-1]


def test_a_draft_with_too_few_rows_is_refused(tmp_path):
    tiny.write_llama(tmp_path, vocab=VOCAB - 8)
    tiny.write_tokenizer(tmp_path)
    for changes in ({}, {"tokenizer": None}):
        with pytest.raises(ModelError, match=f"{VOCAB - 8}"):
            build(spec(tmp_path), context(**changes)[0])


def test_a_draft_larger_than_its_target_is_pointed_out(made):
    given, notes = context(target_parameters=10)
    build(spec(made), given)
    assert len(notes) == 1 and "swapped" in notes[0]


def test_a_draft_that_cannot_be_had(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        build(spec(tmp_path / "nope"), context()[0])
