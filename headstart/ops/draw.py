"""The draft's own choice of a token, and the law it was drawn from: one function for every drafter that has logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from headstart.core import rand
from headstart.core.types import Sequence
from headstart.ops.noise import pick, race
from headstart.ops.sampling import law
from headstart.ops.shaping import shape


def sureness(logits: Tensor, q: Tensor | None) -> float:
    """How sure a draft is of its next token, whichever it draws: the largest probability of its law [1, V], or of its logits [1, V]."""
    if q is not None:
        return float(q.amax())
    return float((logits[-1].amax() - logits[-1].logsumexp(-1)).exp())


def draw_within(
    logits: Tensor, ids: Tensor, vocab: int, seq: Sequence, drafts: Seq[int], temperature: float | None
) -> tuple[int, Tensor | None] | None:
    """`draw` for a draft that knows only `ids` [N] of the target, rising: logits [1, N], not shaped; the law is over all `vocab` ids.

    None where the options of the sequence leave nothing that it knows.
    """
    if seq.params.shapes:
        whole = logits.new_full((1, vocab), float("-inf"))
        whole[0, ids] = logits[0]
        shaped = shape(whole, seq, drafts)
        return draw(shaped, seq, len(drafts), temperature) if bool(torch.isfinite(shaped.amax())) else None
    token, q = draw(logits, seq, len(drafts), temperature, ids)
    return token, None if q is None else q.new_zeros(1, vocab).index_copy_(1, ids, q)


def draw(logits: Tensor, seq: Sequence, drafts: int, temperature: float | None, ids: Tensor | None = None) -> tuple[int, Tensor | None]:
    """The next draft after `drafts` of them, and the law it was drawn from [1, V]; None where it is a point mass.

    logits: [1, V], shaped by the options of the sequence: not for exactness, but so that more is accepted. With `ids` [N] they are
    [1, N], of these ids alone, and so is the law. temperature: the draft's own; None takes the request's.

    The law is drawn from and reported by the same tensor. In `match` mode the draft runs the target's own race under its own
    law, so the two choose alike as often as the noise allows; the target's sample decides.
    """
    params = seq.params if temperature is None else seq.params.with_temperature(temperature)
    q = None
    if params.greedy or seq.params.greedy:
        at = int(logits[-1].argmax())
    else:
        q = law(logits, params)
        if seq.rule == "match":
            return race(q[0], seq.seed, len(seq.tokens) + drafts, ids), None
        at = pick(q[0], rand.uniform(seq.seed, rand.DRAFT, len(seq.tokens), drafts))
    return at if ids is None else int(ids[at]), q
