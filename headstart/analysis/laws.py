"""Two laws at many positions: the tensor twins of `core/theory.py`. p is the target's, q the draft's, both fp64 [N, V]."""

from __future__ import annotations

import torch
from torch import Tensor


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """alpha [N] = sum min(p, q) = 1 - TV."""
    return torch.minimum(p, q).sum(-1)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p, q) [N]; infinite where q leaves out what p allows."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1).clamp_min(0)


def entropy(p: Tensor) -> Tensor:
    """[N], in nats."""
    return -torch.xlogy(p, p).sum(-1)


def shared_noise(p: Tensor, q: Tensor, chosen: Tensor) -> Tensor:
    """Given that the target's race chose `chosen` [N], how often that of q on the same noise does too, [N].

    1 / sum_j max(p_j, p_y q_j / q_y): its mean over y from p is `theory.shared_noise` (Daliri, Musco, Suresh 2408.07978).
    """
    at = chosen[:, None]
    p_y, q_y = p.gather(-1, at), q.gather(-1, at)
    others = torch.maximum(p, p_y * q / q_y.clamp_min(1e-300)).sum(-1)
    return torch.where(q_y.squeeze(-1) > 0, 1 / others, 0.0)
