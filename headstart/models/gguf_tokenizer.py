"""The tokenizer inside a GGUF file, built with the tokenizers library: byte-level BPE, and SentencePiece's BPE.

transformers has a conversion too; building it here takes a small part of its time and memory (of Gemma's 262,144 tokens two seconds
instead of one minute). Tests hold the two equal, but for what the conversion forgets: that "smollm" parts every numeral from its
neighbours, that Qwen2 composes its characters (NFC), and that Llama 3 takes whole words it knows.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headstart.core.errors import ModelError, first_line, nearest

if TYPE_CHECKING:
    from headstart.models.gguf import GGUFFile

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # token types of the GGUF specification

# How a text is parted before merging, by `tokenizer.ggml.pre`: the expressions of the models' own tokenizer.json.
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"llama-bpe": _LLAMA3, "smaug-bpe": _LLAMA3, "dbrx": _LLAMA3, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "tekken": _TEKKEN}
_WHOLE_WORDS = ("llama-bpe", "tekken")  # a word that is a token is not built from merges
_COMPOSED = ("qwen2", "deepseek-r1-qwen")
_DIGITS = ("smollm", "refact", "command-r", "starcoder")  # GPT-2's, with every digit alone
_GPT2 = ("gpt-2", "default")


def build(file: GGUFFile) -> Any:
    """A transformers tokenizer with the file's vocabulary, merges, special tokens and chat template."""
    tokens = file.field("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path} holds no tokenizer: pass tokenizer=DIRECTORY or a hub id")
    kind = file.field("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            return _finish(file, *_byte_level(file, tokens))
        if kind == "llama":
            return _finish(file, *_sentencepiece(file, tokens))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(file.path.parent), gguf_file=file.path.name)
    except ModelError:
        raise
    except Exception as e:  # missing or damaged metadata, kinds nobody converts: the libraries raise as they please
        raise ModelError(
            f"the tokenizer in {file.path} cannot be used ({type(e).__name__}: {first_line(e)}): pass tokenizer=DIRECTORY or a hub id"
        ) from None


def _byte_level(file: GGUFFile, tokens: list[str]) -> tuple[Any, list[str]]:
    """GPT-2's kind: the tokenizer, and its tokens without padding."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = file.field("tokenizer.ggml.pre", "default")
    known = (*_SPLITS, *_DIGITS, *_GPT2)
    if pre not in known:
        raise ModelError(
            f"{file.path} parts texts by {pre!r}, which is not known: {nearest(str(pre), known)}; pass tokenizer=DIRECTORY or a hub id"
        )
    types = file.field("tokenizer.ggml.token_type")
    # A padded vocabulary ends in made-up strings that no text has; they must not count as ids that may be emitted.
    real = max((i for i, kind in enumerate(types) if kind != UNUSED), default=-1) + 1
    tokens = tokens[:real]
    merges = [tuple(m.split(" ", 1)) for m in file.field("tokenizer.ggml.merges")]
    vocab = {t: i for i, t in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre in _SPLITS:
        steps = [
            pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGITS else []
        steps = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, tokens


def _sentencepiece(file: GGUFFile, tokens: list[str]) -> tuple[Any, list[str]]:
    """SentencePiece's BPE with bytes for what it lacks: Llama 2, Mistral, Phi-3 and Gemma; the tokenizer, and its tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    gemma = str(file.architecture).startswith("gemma")
    scores = file.field("tokenizer.ggml.scores")
    if gemma:  # its tokens of spaces alone are stored as such, and its merges go by their order, not by scores
        tokens = ["▁" * len(t) if " " in t and not t.strip() else t for t in tokens]
        scores = range(0, -len(tokens), -1)
    gc.disable()  # or the collector would walk half a million pairs again and again
    try:
        merges = _implied_merges(tokens, scores)
    finally:
        gc.enable()
    unknown = tokens[file.field("tokenizer.ggml.unknown_token_id", 0)]
    model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, fuse_unk=True, unk_token=unknown, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    prefix = bool(file.field("tokenizer.ggml.add_space_prefix", not gemma))
    if gemma:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    elif file.architecture == "phi3":  # every piece of text between special tokens begins with a space
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first" if prefix else "never", split=False)
    tokenizer.decoder = decoders.Sequence([*spaces, decoders.Strip(" ", 1, 0)] if prefix and not gemma else spaces)
    return tokenizer, tokens


def _implied_merges(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges in the order in which SentencePiece makes them: the best token first, of equals that with the longer left part."""
    score = dict(zip(tokens, scores, strict=True))
    best_first = sorted(score, key=score.__getitem__, reverse=True)
    pairs = [(left, right) for t in best_first for i in range(len(t) - 1, 0, -1) if (right := t[i:]) in score and (left := t[:i]) in score]
    if len(set(scores)) == len(tokens):
        return pairs
    return sorted(pairs, key=lambda p: (score[p[0] + p[1]], len(p[0]), len(p[1])), reverse=True)


def _finish(file: GGUFFile, tokenizer: Any, tokens: list[str]) -> Any:
    """Special tokens, what begins and ends a text, and the chat template."""
    from tokenizers import AddedToken, Tokenizer, models, processors
    from transformers import PreTrainedTokenizerFast

    types = file.field("tokenizer.ggml.token_type") or [1] * len(tokens)
    kinds = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in kinds if kind == USER_DEFINED])

    ids = {key: file.field(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "unknown", "padding")}
    roles = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    named = {roles[key]: tokens[i] for key, i in ids.items() if i is not None}
    begins = file.field("tokenizer.ggml.add_bos_token", file.field("tokenizer.ggml.model") == "llama")
    around = [key for key, wanted in (("bos", begins), ("eos", file.field("tokenizer.ggml.add_eos_token", False))) if wanted]
    if around:
        single = [roles[k] for k in around]
        pieces = [named[s] for s in single]
        first, last = (pieces[0] if "bos" in around else ""), (pieces[-1] if "eos" in around else "")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}".split(),
            pair=f"{first} $A {last} {first} $B {last}".split(),
            special_tokens=[(named[s], ids[k]) for s, k in zip(single, around, strict=True)],
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()),
        chat_template=file.field("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **named,
    )
    made._tokenizer = tokenizer  # given at once, it would be copied: three seconds for Gemma's
    return made
