"""The draft's own choice of a token, and the law it was drawn from: one function for every drafter that has logits."""

from __future__ import annotations

from torch import Tensor

from headstart.core import rand
from headstart.core.types import Sequence
from headstart.ops.noise import pick, race
from headstart.ops.sampling import law


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
