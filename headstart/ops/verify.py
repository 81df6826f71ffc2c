"""Verification on tensors: the twin of `core/acceptance.py`, which takes the decision itself on the numbers gathered here.

Knows one sequence at a time; a batch is a loop, and a row never sees its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core import acceptance, rand
from headstart.core.types import Proposal, Sequence, Verdict
from headstart.ops.noise import pick, race
from headstart.ops.sampling import law
from headstart.ops.shaping import ProcessorError, shape


class Fault(ValueError):
    """A row has no law, so its sequence ends here: after `accepted` drafts, which stand."""

    def __init__(self, accepted: int, words: str) -> None:
        super().__init__(words)
        self.accepted = accepted


def verify(logits: Tensor, proposal: Proposal, seq: Sequence) -> Verdict:
    """How many of k drafts stand, and the token after them.

    logits: [k + 1, V] of the target, row i before draft i is fed. The sequence brings its options, its rule, its seed and,
    by the number of its committed tokens, the key of the uniforms. Raises Fault where plain decoding would meet a row
    without a law; a row that only a rejected draft leads to harms nobody.
    """
    drafts, q = proposal.tokens, proposal.probs
    shaped, fault = _usable(logits, seq, drafts)
    if fault is not None:
        drafts, q = drafts[: fault.accepted], None if q is None else q[: fault.accepted]
    verdict = _decide(shaped, drafts, q, seq)
    if fault is not None and verdict.accepted == fault.accepted:
        raise fault
    return verdict


def _usable(logits: Tensor, seq: Sequence, drafts: list[int]) -> tuple[Tensor, Fault | None]:
    """The shaped rows. From the first row on that has no law they are cut off, with a placeholder for that row itself."""
    if not bool(torch.isfinite(logits.sum())):
        row = int(torch.isfinite(logits.sum(-1)).logical_not().nonzero()[0])
        return _until(row, "the logits are not finite: the model or its dtype is at fault", logits, seq, drafts)
    try:
        shaped = shape(logits, seq, drafts)
    except ProcessorError as e:
        return _until(e.row, str(e), logits, seq, drafts)
    top = shaped.amax(-1)  # NaN where a row holds one, -inf where nothing may come
    if shaped is logits or bool(torch.isfinite(top).all()):
        return shaped, None
    row = int(torch.isfinite(top).logical_not().nonzero()[0])
    nothing = bool(top[row] == float("-inf"))
    words = "the options of this request allow no token" if nothing else "a logits processor gave logits that are not finite"
    return _until(row, words, logits, seq, drafts)


def _until(row: int, words: str, logits: Tensor, seq: Sequence, drafts: list[int]) -> tuple[Tensor, Fault]:
    placeholder = torch.zeros_like(logits[:1])
    rows = [shape(logits[:row], seq, drafts[: row - 1])] if row else []
    return torch.cat([*rows, placeholder]), Fault(row, words)


def _decide(logits: Tensor, drafts: list[int], q: Tensor | None, seq: Sequence) -> Verdict:
    params, seed, length = seq.params, seq.seed, len(seq.tokens)
    if params.greedy:
        return acceptance.verify_match(logits.argmax(-1).tolist(), drafts)
    p = law(logits, params)
    if seq.rule == "match" or not drafts:
        # A step without drafts is plain sampling under every rule, so `match` equals it by construction.
        choices: list[int] = []
        for i in range(len(drafts) + 1):
            choices.append(race(p[i], seed, length + i))
            if i < len(drafts) and choices[i] != drafts[i]:
                break
        return acceptance.verify_match(choices, drafts)
    accept = [rand.uniform(seed, rand.ACCEPT, length, i) for i in range(len(drafts))]
    tail = rand.uniform(seed, rand.TAIL, length)
    return judge(p, drafts, q, seq.rule, accept, tail)


def judge(p: Tensor, drafts: list[int], q: Tensor | None, rule: str, u: list[float], u_tail: float) -> Verdict:
    """Rejection or block verification of laws p [k + 1, V], q [k, V] or None, on given uniforms."""
    k = len(drafts)
    at = torch.arange(k), torch.tensor(drafts, dtype=torch.int64)
    p_x = p[at].tolist()
    q_x = [1.0] * k if q is None else q[at].tolist()
    weight = 1.0
    if rule == "block" and q is not None:
        weights = acceptance.block_weights(p_x, q_x)
        inner = torch.tensor(weights[1:k], dtype=p.dtype, device=p.device)[:, None]
        mass = (inner * p[1:k] - q[1:k]).clamp_min(0).sum(-1).tolist()
        kept = acceptance.accept_block(weights, mass, u)
        weight = weights[kept]
    else:
        kept = acceptance.accept_prefix(p_x, q_x, u)
    left = p[kept]
    if kept < k:
        left = _residual(left, drafts[kept], None if q is None else q[kept], weight)
    return Verdict(kept, pick(left, u_tail))


def _residual(p: Tensor, draft: int, q: Tensor | None, weight: float) -> Tensor:
    if q is None:
        left = p.clone()
        left[draft] = 0
    else:
        left = (weight * p - q).clamp_min(0)
    return left if bool(left.sum() > 0) else p
