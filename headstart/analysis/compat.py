"""Whether a draft speaks the target's language: its vocabulary beside the target's, in words."""

from __future__ import annotations

from typing import Any

from headstart.core.errors import ModelError
from headstart.models.head import is_head
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.tokenizer import first_difference, load_tokenizer


def compare(target: Any, draft: Any) -> str:
    """How two tokenizers relate."""
    difference = first_difference(target, draft)
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if difference is None:
        return f"the target's vocabulary, {len(ours):,} ids"
    same = sum(theirs.get(s) == i for s, i in ours.items())
    both = sum(s in theirs for s in ours)
    return (
        f"another vocabulary: {same:,} of the target's {len(ours):,} ids stand for the same string, {both:,} of its strings are in the "
        f"draft's vocabulary under some id; {difference}"
    )


def described(target: Any, model: str, revision: str | None = None) -> str:
    """The vocabulary and context of a draft checkpoint. Raises ModelError when it cannot be opened."""
    checkpoint = open_checkpoint(model, revision)
    if is_head(checkpoint.config):
        own = checkpoint.config.get("draft_vocab_size")
        return f"a head on the target's hidden states, {f'{own:,} of' if isinstance(own, int) else 'all'} the target's ids"
    context = checkpoint.config.get("max_position_embeddings")
    tail = f", context {context:,}" if isinstance(context, int) else ""
    if target is None:
        return f"vocabulary not compared: the target has no tokenizer{tail}"
    try:
        return compare(target, load_tokenizer(checkpoint)) + tail
    except ModelError as e:
        return f"vocabulary not compared: {e}{tail}"
