"""How the tokens of one verdict were judged, for requests that ask to see it. Only looks: nothing here decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from headstart.core.outputs import RejectedDraft, TokenTrace
from headstart.core.types import Proposal, Sequence
from headstart.ops.logprobs import log_law


def trace(
    rows: Tensor, seq: Sequence, proposal: Proposal, accepted: int, tail: int | None, text: Callable[[int], str | None]
) -> list[TokenTrace]:
    """One entry for each token that the verdict yields, before any is committed.

    rows: [k + 1, V] logits of the target. tail: None where its row had no law, as in `Engine._commit`. text: decodes a token.
    """
    drafts, own = proposal.tokens, [] if tail is None else [tail]
    judged = accepted + len(own)
    if not judged:
        return []
    p = log_law(rows[:judged], seq, drafts[: judged - 1], True).exp()  # [judged, V]
    q = [None] * len(drafts) if proposal.probs is None else [float(proposal.probs[i, x]) for i, x in enumerate(drafts)]
    out = [TokenTrace(float(p[i, drafts[i]]), q[i]) for i in range(accepted)]
    if tail is not None:
        left = [RejectedDraft(x, text(x), None, q[i]) for i, x in enumerate(drafts) if i >= accepted]
        if left:
            left[0] = replace(left[0], p=float(p[accepted, left[0].token_id]))
        out.append(TokenTrace(float(p[accepted, tail]), None, tuple(left)))
    return out
