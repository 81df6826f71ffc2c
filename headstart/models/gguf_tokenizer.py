"""The tokenizer inside a GGUF file: byte-level BPE built with the tokenizers library, anything else through transformers.

Building it here takes a tenth of the time and memory of transformers' conversion. A test holds the two equal, but for
numerals beyond ASCII: the conversion forgets that "smollm" parts every numeral from its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.core.errors import ModelError, first_line

if TYPE_CHECKING:
    from headstart.models.gguf import GGUFFile

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # token types of the GGUF specification


def build(file: GGUFFile) -> Any:
    """A transformers tokenizer with the file's vocabulary, merges, special tokens and chat template."""
    tokens = file.field("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path} holds no tokenizer: pass tokenizer=DIRECTORY or a hub id")
    try:
        if file.field("tokenizer.ggml.model") == "gpt2" and file.field("tokenizer.ggml.pre") == "smollm":
            return _byte_level_bpe(file, tokens)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(file.path.parent), gguf_file=file.path.name)
    except Exception as e:  # missing or damaged metadata, kinds nobody converts: the libraries raise as they please
        raise ModelError(
            f"the tokenizer in {file.path} cannot be used ({type(e).__name__}: {first_line(e)}): pass tokenizer=DIRECTORY or a hub id"
        ) from None


def _byte_level_bpe(file: GGUFFile, tokens: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    types = file.field("tokenizer.ggml.token_type")
    # A padded vocabulary ends in made-up strings that no text has; they must not count as ids that may be emitted.
    real = max((i for i, kind in enumerate(types) if kind != UNUSED), default=-1) + 1
    tokens, types = tokens[:real], types[:real]
    merges = [tuple(m.split(" ", 1)) for m in file.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED])

    named = {}
    for key, role in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        at = file.field(f"tokenizer.ggml.{key}_token_id")
        if at is not None:
            named[role] = tokens[at]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=file.field("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **named,
    )
