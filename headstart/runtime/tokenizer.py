"""The tokenizer of a checkpoint, and whether two tokenizers give the same string to every id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headstart.core.errors import ModelError, first_line
from headstart.models.gguf import GGUFFile
from headstart.runtime.checkpoint import Checkpoint, resolve


def load_tokenizer(checkpoint: Checkpoint, tokenizer: str | None = None, revision: str | None = None, token: str | None = None) -> Any:
    """The checkpoint's own tokenizer, or the one named. Raises ModelError when there is none."""
    if tokenizer is None and checkpoint.gguf is not None:
        return checkpoint.gguf.tokenizer()
    path = checkpoint.path if tokenizer is None else resolve(tokenizer, revision, token)
    if path.is_file():
        return GGUFFile(path).tokenizer()
    return _from_directory(path)


def _from_directory(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # missing files, broken JSON, a class that is not there: transformers raises many kinds
        raise ModelError(f"no tokenizer could be loaded from {path} ({first_line(e)}): pass tokenizer=...") from None


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
