"""GGUF: the numbers of the same weights in safetensors, the config, the tokenizer, and files that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from headstart.core.errors import ModelError
from headstart.models import gguf as gguf_module
from headstart.models.gguf import GGUFFile
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Runner
from headstart.runtime.tokenizer import load_tokenizer, real_vocab
from tests import tiny

CPU = torch.device("cpu")
KINDS = ("F32", "F16", "Q8_0", "Q4_1")
VOCAB = len(tiny.vocabulary()[0])
TEXT = [5, 280, 17, 17, 99, 3, 250, 60, 1, 42, 2]
CORPUS = [
    "The cat sat on the mat.",
    "Hello, world! It's a test; isn't it?  Two  spaces.",
    "敏捷的棕色狐狸跳过了懒狗。日本語とハングル 한국어",
    "def f(x):\n    return x ** 2  # squared\n\n\tif x:\n\t\tpass\n",
    "3.14159 1234567890 2024-01-31 0x1F",
    "emoji 😀👩‍👩‍👧 🇩🇪 é é naïve Ünïcode",
    "   leading, trailing   \n\n\n\n\t\t  \r\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|>x <|im_end|>",
    "a<|im_end|>b<|im_end|><|im_end|> c",
    "\u200b\ufeff\x00\x07 control",
    "",
    " ",
]
NUMERALS = "١٢٣ ½ ² x² 第五 Ⅷ 12½"
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Why 42?"}]


def load(path):
    return load_model(open_checkpoint(str(path)), torch.float64, CPU)


def logits(model) -> torch.Tensor:
    return Runner(model, 3, 4, model.config.vocab_size, 128).forward([Feed(TEXT, 0, [2, 0, 1], len(TEXT))])[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [{}, {"heads": 2, "kv_heads": 1, "head_dim": 32, "tied": False}], ids=["tied GQA", "untied MQA"])
def test_logits_equal_the_same_weights_in_safetensors(tmp_path, kind, shape):
    model = tiny.llama_model(vocab=VOCAB, **shape)
    tiny.write_gguf(tmp_path / "m.gguf", model, kind)
    tiny.through_gguf_type(model, kind)
    for p in model.parameters():  # GGUF keeps vectors in fp32
        p.data = p.data.float().double()
    tiny.save(tmp_path, model)
    got = logits(load(tmp_path / "m.gguf"))
    torch.testing.assert_close(got, logits(load(tmp_path)), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(got, tiny.logits_of(model, TEXT), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 700])
def test_dequantising_in_pieces_changes_nothing(tmp_path, monkeypatch, chunk):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), "Q4_1")
    file = GGUFFile(tmp_path / "m.gguf")
    whole = {name: file.tensor(name) for name in file.names()}
    monkeypatch.setattr(gguf_module, "_CHUNK_BYTES", chunk)
    for name, values in whole.items():
        assert values.dtype is torch.float32 and torch.equal(values, file.tensor(name))


def test_names_and_config(tmp_path):
    model = tiny.llama_model(vocab=VOCAB, tied=False, head_dim=12, rope={"rope_type": "default", "rope_theta": 5000.0})
    tiny.write_gguf(tmp_path / "m.gguf", model, "F16")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert sorted(checkpoint.tensor_names) == sorted(n for n, _ in model.named_parameters())
    want = model.config.to_dict()
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"):
        assert checkpoint.config[name] == want[name], name
    assert checkpoint.config["max_position_embeddings"] == 128 and checkpoint.config["rope_theta"] == 5000.0
    assert checkpoint.config["rms_norm_eps"] == pytest.approx(1e-6) and checkpoint.config["tie_word_embeddings"] is False
    assert any("F16" in line for line in checkpoint.notes)


def test_a_directory_with_one_gguf_file(tmp_path):
    tiny.write_gguf(tmp_path / "a.gguf", tiny.llama_model(vocab=VOCAB))
    assert open_checkpoint(str(tmp_path)).path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="2 GGUF files"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "ids"), [({}, [2]), ({"eot": 0}, [2, 0]), ({"eot": 2}, [2]), ({"drop": ("eos",)}, []), ({"eot": 0xFFFFFFFF}, [2])]
)
def test_eos_ids(tmp_path, options, ids):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), **options)
    assert open_checkpoint(str(tmp_path / "m.gguf")).eos_ids == ids


def test_an_end_of_text_that_is_no_id_is_refused(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), eot=VOCAB)
    with pytest.raises(ModelError, match=f"end-of-text id {VOCAB}"):
        open_checkpoint(str(tmp_path / "m.gguf"))


# The tokenizer


def assert_same_tokenizer(ours, theirs, corpus=CORPUS):
    assert ours.get_vocab() == theirs.get_vocab()
    assert set(ours.all_special_tokens) == set(theirs.all_special_tokens)
    for role in ("bos_token", "eos_token", "unk_token"):
        assert getattr(ours, role) == getattr(theirs, role)
    for text in corpus:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.encode(text) == theirs.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    for prompt in (True, False):
        texts = [t.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt) for t in (ours, theirs)]
        assert texts[0] == texts[1]


def test_the_tokenizer_equals_the_one_it_was_made_from(tmp_path):
    """With tokens of several digits in the vocabulary, which nothing may ever use."""
    words = (*tiny.WORDS, "12", "Ġ1", "34")
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=len(tiny.vocabulary(words)[0])), words=words)
    assert_same_tokenizer(GGUFFile(tmp_path / "m.gguf").tokenizer(), tiny.tokenizer(words), [*CORPUS, NUMERALS])


def test_the_tokenizer_equals_the_conversion_of_transformers(tmp_path):
    from transformers import AutoTokenizer

    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    assert_same_tokenizer(GGUFFile(tmp_path / "m.gguf").tokenizer(), theirs)


def test_text_survives(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB))
    tokenizer = GGUFFile(tmp_path / "m.gguf").tokenizer()
    for text in CORPUS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


SENTENCES = ("▁the", "▁cat", "the", "▁▁", "▁", "th", "at", "猫", "▁th", "▁c", "ca", "cat", "t", "h", "e", "c", "a", "s", "\n")


def sentencepiece(architecture: str) -> tuple[list[str], list[float], list[int]]:
    """A vocabulary of SentencePiece's kind: control tokens, bytes, pieces; scores as its trainer gives them, falling."""
    control = ["<unk>", "<s>", "</s>"]
    whole = ["<turn>"]
    tokens = control + whole + [f"<0x{b:02X}>" for b in range(256)]
    pieces = ["  " if p == "▁▁" and architecture == "gemma3" else p for p in SENTENCES]
    types = [2, 3, 3] + [4] + [6] * 256 + [1] * len(pieces)
    return tokens + pieces, [0.0] * len(tokens) + [-float(i) for i in range(len(pieces))], types


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "phi3"])
def test_sentencepiece_equals_the_conversion_of_transformers(tmp_path, architecture):
    """Spaces before words, bytes of what the vocabulary lacks, and merges that only the scores imply."""
    import gguf
    from transformers import AutoTokenizer

    tokens, scores, types = sentencepiece(architecture)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(architecture != "gemma3")
    writer.add_chat_template(tiny.CHAT_TEMPLATE)
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_embedding_length, 8),
        (writer.add_head_count, 1),
        (writer.add_context_length, 8),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_feed_forward_length(8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    ours = GGUFFile(tmp_path / "m.gguf").tokenizer()
    texts = [*CORPUS, "the cat  the\n<turn>the cat</s>猫 cat", " cat", "cat  "]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text), text
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-2"])
def test_other_ways_to_part_a_text(tmp_path, pre):
    """As transformers' conversion has it, but for what that forgets (docstring of gguf_tokenizer): whole words of Llama 3 and Tekken."""
    from transformers import AutoTokenizer

    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), change={"tokenizer_pre": pre})
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    theirs.backend_tokenizer.model.ignore_merges = pre in ("llama-bpe", "tekken")
    ours = GGUFFile(tmp_path / "m.gguf").tokenizer()
    for text in [*CORPUS, "it's WE'LL 12345 a_b\r\n\r\n  x"]:
        assert ours.encode(text) == theirs.encode(text), text


def test_an_unknown_way_to_part_a_text_is_refused(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), change={"tokenizer_pre": "qwen9"})
    with pytest.raises(ModelError, match=r"qwen9.*qwen2"):
        GGUFFile(tmp_path / "m.gguf").tokenizer()


@pytest.mark.real
def test_the_demo_tokenizer_equals_the_conversion_of_transformers(real_file):
    from tokenizers import Regex, pre_tokenizers
    from transformers import AutoTokenizer

    ours = GGUFFile(real_file).tokenizer()
    theirs = AutoTokenizer.from_pretrained(str(real_file.parent), gguf_file=real_file.name)
    code = Path(gguf_module.__file__).read_text()
    assert_same_tokenizer(ours, theirs, [*CORPUS, code, "".join(CORPUS)])
    # The conversion forgets that "smollm" parts every numeral from its neighbours, which shows outside ASCII only. As llama.cpp has it:
    parts = [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    assert_same_tokenizer(ours, theirs, [*CORPUS, code, NUMERALS])


@pytest.mark.real
def test_the_demo_model_knows_the_capital_of_france(real_file):
    """The weights in their right places: a permuted row or a wrong norm would not know it."""
    tokenizer, model = GGUFFile(real_file).tokenizer(), load_model(open_checkpoint(str(real_file)), torch.float32, CPU)
    ids = tokenizer.encode("The capital of France is")
    logits = Runner(model, 1, 16, model.config.vocab_size, 128).forward([Feed(ids, 0, [0], 1)])[0]
    assert tokenizer.decode([int(logits.argmax())]) == " Paris"


# Files that are not what they should be


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    tiny.write_gguf(path, tiny.llama_model(vocab=VOCAB))
    return path.read_bytes()


def open_all(path) -> None:
    """What starting up does with a file."""
    checkpoint = open_checkpoint(str(path))
    checkpoint.gguf.tokenizer()
    load_model(checkpoint, torch.float32, CPU)


@pytest.mark.parametrize("part", [0, 3, 8, 23, 24, 100, 3000, 0.5, 0.9, -1, -200])
def test_truncated_files(tmp_path, good, part):
    (tmp_path / "m.gguf").write_bytes(good[: int(part * len(good)) if isinstance(part, float) else part])
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_all(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "header", [b"GGML", b"PK\x03\x04", b"GGUF\x01\0\0\0", b"GGUF\x03\0\0\0" + b"\xff" * 16, b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\x40"]
)
def test_foreign_headers(tmp_path, good, header):
    """Other magic, an old version, and counts of tensors and fields beyond any file."""
    (tmp_path / "m.gguf").write_bytes(header + good[len(header) :])
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_all(tmp_path / "m.gguf")


def test_damaged_bytes_raise_model_errors_only(tmp_path, good):
    """Random bytes of the metadata overwritten: a file may still open, but nothing else than a ModelError comes out."""
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(120):
        damaged = np.frombuffer(good, dtype=np.uint8).copy()
        damaged[generator.integers(8, 12_000, 4)] = generator.integers(0, 256, 4)
        (tmp_path / "m.gguf").write_bytes(damaged.tobytes())
        try:
            open_all(tmp_path / "m.gguf")
        except ModelError:
            refused += 1
    assert refused > 50


def test_unsupported_architecture(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), architecture="gemma")
    with pytest.raises(ModelError, match=r"gemma.*supported: llama"):
        open_checkpoint(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("kind", ["tensor", "linear", "yarn"])
def test_scaled_rope(tmp_path, kind):
    """Llama 3's stretching comes as a tensor of factors; other scalings as metadata."""
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    rope = yarn if kind == "yarn" else {"rope_type": "linear", "factor": 2.0}
    model = tiny.llama_model(vocab=VOCAB, rope={**rope, "rope_theta": 1e4})
    factors = {"rope_freqs.weight": np.full(4, 2.0, np.float32)} if kind == "tensor" else None
    scaling = None if kind == "tensor" else (kind, 2.0, 64)
    tiny.write_gguf(tmp_path / "m.gguf", model, extra=factors, scaling=scaling)
    torch.testing.assert_close(logits(load(tmp_path / "m.gguf")), tiny.logits_of(model, TEXT), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("field", "value"), [("rope_dimension_count", 4), ("value_length", 4)])
def test_shapes_of_heads_that_are_not_computed_are_refused(tmp_path, field, value):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), change={field: value})
    with pytest.raises(ModelError, match=r"rope.dimension_count|values of"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_tensors_nobody_would_apply_are_refused(tmp_path):
    """Biases and extra norms belong to the model: leaving them out would be another model, silently."""
    tiny.write_gguf(tmp_path / "bias.gguf", tiny.llama_model(vocab=VOCAB, bias=True))
    tiny.write_gguf(tmp_path / "norm.gguf", tiny.llama_model(vocab=VOCAB), extra={"blk.0.attn_q_norm.weight": np.ones(8, np.float32)})
    for name, tensor in (("bias", "q_proj.bias"), ("norm", "self_attn.q_norm")):
        with pytest.raises(ModelError, match=tensor):
            open_all(tmp_path / f"{name}.gguf")


@pytest.mark.parametrize("field", ["context_length", "embedding_length", "block_count", "head_count", "rms_eps"])
def test_missing_metadata(tmp_path, field):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), drop=(field,))
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_all(tmp_path / "m.gguf")


@pytest.mark.parametrize("field", ["tokenizer_model", "token_list", "token_types", "token_merges"])
def test_missing_tokenizer_metadata(tmp_path, field):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.llama_model(vocab=VOCAB), drop=(field,))
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_all(tmp_path / "m.gguf")


@pytest.mark.parametrize("field", ["head_count_kv", "key_length", "rope_freq_base", "vocab_size"])
def test_metadata_with_a_default(tmp_path, field):
    """The specification gives these a value when they are absent."""
    model = tiny.llama_model(vocab=VOCAB, kv_heads=4)
    tiny.write_gguf(tmp_path / "m.gguf", model, drop=(field,))
    torch.testing.assert_close(logits(load(tmp_path / "m.gguf")), tiny.logits_of(model, TEXT), rtol=1e-3, atol=1e-4)


def test_the_strings_of_padding_rows_are_no_ids(tmp_path):
    """The converter names padded rows [PADn] and marks them unused: they must not be emitted, tempting as their logits are."""
    size = len(tiny.vocabulary()[0])
    model = tiny.llama_model(vocab=size, pad_rows=10, dtype=torch.float32)
    tiny.write_gguf(tmp_path / "m.gguf", model, pad=True)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    tokenizer = load_tokenizer(checkpoint)
    assert checkpoint.config["vocab_size"] == size + 10
    assert real_vocab(tokenizer, size + 10) == size
