"""Log probabilities of emitted tokens: the target's own, from the rows of the pass that judged them; never the draft's."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from headstart.core.types import Sequence
from headstart.ops.sampling import law
from headstart.ops.shaping import shape

Scores = dict[int, tuple[float, int]]  # token id -> (log probability, rank from 1)


def log_law(logits: Tensor, seq: Sequence, drafts: Seq[int], processed: bool) -> Tensor:
    """Log probabilities fp64 [R, V] of the rows of `shape`: of the model alone, or `processed` by every option.

    A greedy request has no temperature and no filters, so there processed means after penalties, bias and masks.
    """
    if processed:
        logits = shape(logits, seq, drafts)
        if not seq.params.greedy:
            return law(logits, seq.params).log()
    return torch.log_softmax(logits.double(), -1)


def score(rows: Tensor, tokens: Seq[int], count: int) -> list[Scores]:
    """For each row [V] of log probabilities: its token first, then the `count` likeliest (-1: all), likeliest first."""
    size = rows.shape[-1]
    best = rows.topk(size if count < 0 else min(count, size), -1)
    own = rows.gather(-1, torch.tensor(tokens, device=rows.device)[:, None])
    ranks = (rows > own).sum(-1) + 1
    out: list[Scores] = []
    columns = own[:, 0].tolist(), ranks.tolist(), best.indices.tolist(), best.values.tolist()
    for token, mine, rank, ids, values in zip(tokens, *columns, strict=True):
        scores = {token: (mine, rank)}
        for place, (i, value) in enumerate(zip(ids, values, strict=True), start=1):
            scores.setdefault(i, (value, place))
        out.append(scores)
    return out
