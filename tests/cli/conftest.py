"""A tiny Llama with random weights and a tokenizer of its own, saved as a checkpoint the way the hub has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.cli.main import run

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEXT = [
    "the harbour master keeps a list of every ship that enters the harbour",
    "each morning the harbour master reads the list aloud and each evening writes the names of new ships",
]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a checkpoint with a chat template."""
    return _write(tmp_path_factory.mktemp("tiny"), TEMPLATE)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a chat template."""
    return _write(tmp_path_factory.mktemp("base"), None)


def _write(folder: Path, template: str | None) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", additional_special_tokens=special[1:])
    fast.chat_template = template
    fast.save_pretrained(folder)

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=0,
        tie_word_embeddings=True,
        initializer_range=0.3,  # wide enough that greedy text is not one token for ever
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def headstart(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line in this process: (exit code, stdout, stderr). Neither stream is a terminal."""

    def call(*argv: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(a) for a in argv])
        return code, *capfd.readouterr()

    return call
