"""The tokenizer of a checkpoint, and whether two tokenizers give the same string to every id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headstart.core.errors import ModelError, first_line
from headstart.models.gguf import GGUFFile
from headstart.runtime.checkpoint import Checkpoint, resolve


def load_tokenizer(checkpoint: Checkpoint, tokenizer: str | None = None, revision: str | None = None, token: str | None = None) -> Any:
    """The checkpoint's own tokenizer, or the one named. Raises ModelError when there is none."""
    if tokenizer is None and checkpoint.gguf is not None:
        return checkpoint.gguf.tokenizer()
    return _from_path(checkpoint.path) if tokenizer is None else open_tokenizer(tokenizer, revision, token)


def open_tokenizer(source: str, revision: str | None = None, token: str | None = None) -> Any:
    """The tokenizer in a directory, a GGUF file or at a hub id. Raises ModelError when there is none."""
    return _from_path(resolve(source, revision, token))


def _from_path(path: Path) -> Any:
    if path.is_file():
        return GGUFFile(path).tokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), config=_model_named(path), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # missing files, broken JSON, a class that is not there: transformers raises many kinds
        raise ModelError(f"no tokenizer could be loaded from {path} ({first_line(e)}): pass tokenizer=...") from None


def _model_named(path: Path) -> Any:
    """What transformers goes by when it chooses the class of a tokenizer; None lets it read the model's whole config for that.

    Where the tokenizer names its class, no more than the model's type is asked for, and the whole config costs the import of all that
    builds models: more than a second.
    """
    names, model = path / "tokenizer_config.json", path / "config.json"
    if not names.exists() or not model.exists():
        return None
    tokenizer, config = (json.loads(file.read_text(encoding="utf-8")) for file in (names, model))
    if not isinstance(tokenizer.get("tokenizer_class"), str) or "auto_map" in tokenizer or "model_type" not in config:
        return None
    return SimpleNamespace(model_type=config["model_type"], _name_or_path=str(path))


def decoder(tokenizer: Any) -> Callable[[list[int], bool], str]:
    """From (ids, whether special tokens are left out) to their text as it is. Once per token: so past what transformers only hands on."""
    from transformers import PreTrainedTokenizerFast as Fast

    kind = type(tokenizer)
    if isinstance(tokenizer, Fast) and kind.decode is Fast.decode and kind._decode is Fast._decode:
        decode: Callable[[list[int], bool], str] = tokenizer.backend_tokenizer.decode
        return decode
    return lambda ids, skip: str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def continuation(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text that follows another: without the special tokens or the space that only the beginning of a text gets.

    A line break is put before it and taken off again, since an answer begins after one in most chat templates; where it
    merges with the text, the text alone is what there is.
    """
    encode = lambda t: list(tokenizer(t, add_special_tokens=False).input_ids)  # noqa: E731
    anchor, both = encode("\n"), encode("\n" + text)
    return both[len(anchor) :] if both[: len(anchor)] == anchor else encode(text)


def fingerprint(tokenizer: Any) -> str:
    """A hash of which string each id stands for."""
    pairs = sorted((i, s) for s, i in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def real_vocab(tokenizer: Any, rows: int) -> int:
    """Ids that mean something: one beyond the tokenizer's highest, at most the rows of the embedding."""
    vocabulary = tokenizer.get_vocab()
    return min(rows, max(vocabulary.values()) + 1) if vocabulary else rows


def first_difference(target: Any, draft: Any) -> str | None:
    """None when both tokenizers map the same ids to the same strings, else the first difference in words."""
    ours = {i: s for s, i in target.get_vocab().items()}
    theirs = {i: s for s, i in draft.get_vocab().items()}
    for i in sorted(ours.keys() | theirs.keys()):
        if ours.get(i) != theirs.get(i):
            return f"id {i} is {ours.get(i)!r} in the target and {theirs.get(i)!r} in the draft"
    return None
