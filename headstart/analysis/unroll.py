"""A head at every root of a text, draft by draft, if the drafts before are the text: its law depends on where it began.

A later draft reads what the head itself made of the drafts before it, where the same token from a later root reads the target's states.
So every root has entries of its own behind those of the text that all roots share: blocks of one token, in a cache for one text. The
passes are the head's own, as in the engine, but over many roots at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from headstart.draft.head import HeadModel, forward
from headstart.runtime.runner import Feed

ROWS = 128  # of a pass


def unrolled(model: HeadModel, tokens: Seq[int], states: Tensor, first: int, longest: int) -> Iterator[Tensor]:
    """For each draft the logits [R, N] of the head's tokens, at the roots of `first`, `first` + 1, … tokens whose text goes on so far.

    states: the target's at each position of the text, as the head reads them. first: 2 at least, since a root has one state before it.
    """
    count = len(tokens)
    cache = model.new_cache(count + longest * max(count - first, 0))
    shared = list(range(count))
    found: list[tuple[Tensor, Tensor]] = []
    for start in range(0, count - 2, ROWS):  # what the target has shown: position p, with the token after it, predicts the one after that
        stop = min(start + ROWS, count - 2)
        wanted = max(0, stop - max(start, first - 2))
        feed = Feed(tokens[start + 1 : stop + 1], start, shared, wanted)
        found.append(forward(model, [feed], model.fuse(states[start:stop]), cache, 1))
    for draft in range(1, longest + 1):
        if not found:
            return
        logits, state = (torch.cat(parts) for parts in zip(*found, strict=True))
        yield logits
        roots = range(first, count - draft)
        found = []
        for at in range(0, len(roots) if draft < longest else 0, ROWS):
            feeds = [
                Feed([tokens[root + draft - 1]], root + draft - 2, shared[: root - 1] + _own(count, root - first, draft, longest), 1)
                for root in roots[at : at + ROWS]
            ]
            found.append(forward(model, feeds, state[at : at + len(feeds)], cache, 1))


def _own(count: int, root: int, drafts: int, longest: int) -> list[int]:
    """The slots of so many drafts of one root, behind those of the text."""
    start = count + root * longest
    return list(range(start, start + drafts))
