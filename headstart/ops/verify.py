"""Verification on tensors: the twin of `core/acceptance.py`, which takes the decision itself on the numbers gathered here.

Knows one sequence at a time; a batch is a loop, and a row never sees its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core import acceptance, rand
from headstart.core.params import SamplingParams
from headstart.core.types import Proposal, Verdict
from headstart.ops.noise import pick, race
from headstart.ops.sampling import law


class NonFiniteLogits(ValueError):
    """A row of logits holds NaN or infinity, so it has no law."""


def verify(logits: Tensor, proposal: Proposal, params: SamplingParams, rule: str, seed: int, length: int) -> Verdict:
    """How many of k drafts stand, and the token after them.

    logits: [k + 1, V] of the target, row i before draft i is fed. length: committed tokens at the start of the step,
    which keys the uniforms. rule: "rejection", "block" or "match". Raises NonFiniteLogits.
    """
    if not bool(torch.isfinite(logits.sum())):
        raise NonFiniteLogits("the logits are not finite")
    drafts = proposal.tokens
    if params.greedy:
        return acceptance.verify_match(logits.argmax(-1).tolist(), drafts)
    p = law(logits, params)
    if rule == "match" or not drafts:
        # A step without drafts is plain sampling under every rule, so `match` equals it by construction.
        choices: list[int] = []
        for i in range(len(drafts) + 1):
            choices.append(race(p[i], seed, length + i))
            if i < len(drafts) and choices[i] != drafts[i]:
                break
        return acceptance.verify_match(choices, drafts)
    accept = [rand.uniform(seed, rand.ACCEPT, length, i) for i in range(len(drafts))]
    tail = rand.uniform(seed, rand.TAIL, length)
    return judge(p, drafts, proposal.probs, rule, accept, tail)


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
