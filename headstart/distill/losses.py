"""Losses between the target's law p and the draft's law q, with their gradients in closed form, a few rows at a time.

alpha = sum min(p, q) is how often a draft stands (Leviathan et al. 2211.17192), so TV = 1 - alpha is the exact objective; its gradient
vanishes where the two hardly overlap, which is how a draft starts. So by default it is mixed with KL(p, q), whose share is
lambda = exp(-3 alpha): KL at first, TV at last (LK hybrid). p may be a part of a law, over a trimmed vocabulary: what is
outside cannot be accepted and teaches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOSSES = ("mix", "kl", "tv", "ce-l1")
_CELLS = 1 << 21  # logits at once: they stay in the processor's cache


@dataclass(frozen=True)
class Teacher:
    """The target's law at some rows: softmax of `states @ weight.T` with the mass of the whole vocabulary known."""

    states: Tensor  # [N, hidden], normed
    weight: Tensor  # [V', hidden], rows of the target's head
    lse: Tensor  # [N]
    chosen: Tensor  # [N] the entry of V' that came, -1 where it is outside
    likeliest: Tensor  # [N] the entry of V' that is likeliest in the whole vocabulary, -1 where it is outside

    def law(self, rows: slice) -> Tensor:
        """p [rows, V']; sums to less than 1 where the vocabulary is trimmed."""
        return torch.exp(self.states[rows] @ self.weight.T - self.lse[rows, None])


@dataclass
class Sums:
    """Sums over rows: of their weights, and weighted."""

    weight: float = 0.0
    loss: float = 0.0
    alpha: float = 0.0
    agree: float = 0.0  # the draft's likeliest token is the target's: what stands at temperature 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.weight + other.weight, self.loss + other.loss, self.alpha + other.alpha, self.agree + other.agree)


def row_loss(q: Tensor, p: Tensor, chosen: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [N], its gradient by the logits of q [N, V], and alpha [N], of laws [N, V].

    With g the gradient by q, that by the logits is q * (g - sum q g). "ce-l1" is 0.1 CE + 0.9 L1 (DSpark).
    """
    alpha = torch.minimum(p, q).sum(-1)
    if kind == "tv":
        return 1 - alpha, _through(q, -(q < p).to(q.dtype)), alpha
    if kind == "ce-l1":
        known = chosen >= 0
        at = chosen.clamp_min(0)[:, None]
        ce = torch.where(known, -q.gather(1, at)[:, 0].clamp_min(1e-30).log(), 0.0)
        by_ce = torch.where(known[:, None], q, 0.0).scatter_add(1, at, -known.to(q.dtype)[:, None])
        return 0.1 * ce + 0.9 * (q - p).abs().sum(-1), 0.1 * by_ce + 0.9 * _through(q, torch.sign(q - p)), alpha
    kl = (p * (p.clamp_min(1e-30).log() - q.clamp_min(1e-30).log())).sum(-1)
    by_kl = p.sum(-1, keepdim=True) * q - p
    if kind == "kl":
        return kl, by_kl, alpha
    share = torch.exp(-3 * alpha)
    gradient = share[:, None] * by_kl + (1 - share)[:, None] * _through(q, -(q < p).to(q.dtype))
    return share * kl + (1 - share) * (1 - alpha), gradient, alpha


def _through(q: Tensor, g: Tensor) -> Tensor:
    return q * (g - (q * g).sum(-1, keepdim=True))


class _LawLoss(torch.autograd.Function):
    """Weighted sum of row losses of softmax(x W^T) against a teacher; never holds more than a few rows of logits."""

    @staticmethod
    def forward(ctx, x, weight, teacher: Teacher, row_weight, kind: str, replay: bool, sums: Sums):  # type: ignore[no-untyped-def]
        by_x = torch.zeros_like(x)
        by_weight = torch.zeros_like(weight) if weight.requires_grad else None
        total = x.new_zeros(())
        step = max(1, _CELLS // weight.shape[0])
        for at in range(0, len(x), step):
            rows = slice(at, at + step)
            p, logits = teacher.law(rows), x[rows] @ weight.T
            q = torch.softmax(logits, -1)
            loss, gradient, alpha = row_loss(q, p, teacher.chosen[rows], kind)
            w = row_weight[rows]
            sums.weight += float(w.sum())
            sums.alpha += float((w * alpha).sum())
            sums.agree += float((w * (q.argmax(-1) == teacher.likeliest[rows])).sum())
            if replay:  # where a draft would be rejected anyway
                w = w * (1 - alpha)
            total += (w * loss).sum()
            gradient *= w[:, None]
            by_x[rows] = gradient @ weight
            if by_weight is not None:
                by_weight.addmm_(gradient.T, x[rows])
        sums.loss += float(total)
        ctx.save_for_backward(by_x, *([by_weight] if by_weight is not None else []))
        return total

    @staticmethod
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        by_x, *rest = ctx.saved_tensors
        return upstream * by_x, upstream * rest[0] if rest else None, None, None, None, None, None


def law_loss(x: Tensor, weight: Tensor, teacher: Teacher, row_weight: Tensor, kind: str, replay: bool = False) -> tuple[Tensor, Sums]:
    """The loss of softmax(x W^T) over rows weighted by `row_weight` [N], and what else was found on the way.

    x: [N, hidden], weight: [V', hidden]. replay: weigh each row by its chance of rejection too.
    """
    sums = Sums()
    return _LawLoss.apply(x, weight, teacher, row_weight, kind, replay, sums), sums
