"""How a draft's law stands beside the target's, row by row: tensors in, tensors out.

p is the target's law [R, V] and `soft` the one that is looked at where p is a point; came [R] are the tokens that came, top [R] the
target's likeliest. A head's law is over its own tokens only: there V is those tokens, and in a last column all others together (`among`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.analysis import laws
from headstart.core.params import SamplingParams
from headstart.draft.base import Drafter
from headstart.ops.sampling import law

TEMPERATURES = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6)
Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Truths:
    """The target at R rows: p and soft fp64 [R, V], came and top [R] as indices of V."""

    p: Tensor
    soft: Tensor
    came: Tensor
    top: Tensor

    def __getitem__(self, rows: slice) -> Truths:
        return Truths(self.p[rows], self.soft[rows], self.came[rows], self.top[rows])

    def among(self, ids: Tensor) -> Truths:
        """The same over `ids` [N], rising, and over all other tokens together in a last column."""
        places = self.p.new_full((self.p.shape[1],), len(ids), dtype=torch.int64)
        places[ids] = torch.arange(len(ids), device=ids.device)
        p = _lumped(self.p, ids)
        return Truths(p, p if self.soft is self.p else _lumped(self.soft, ids), places[self.came], places[self.top])

    @staticmethod
    def joined(parts: Seq[Truths]) -> Truths:
        """One after the other."""
        p = torch.cat([t.p for t in parts])
        soft = p if all(t.soft is t.p for t in parts) else torch.cat([t.soft for t in parts])
        return Truths(p, soft, torch.cat([t.came for t in parts]), torch.cat([t.top for t in parts]))


def _lumped(p: Tensor, ids: Tensor) -> Tensor:
    return torch.cat((p[:, ids], p.index_fill(1, ids, 0.0).sum(-1, keepdim=True)), -1)


def plain_law(params: SamplingParams) -> SamplingParams:
    """The options whose law is looked at where that of `params` is a point: at temperature 0, the model's own at 1."""
    return SamplingParams(temperature=1.0) if params.greedy else params


def own_params(drafter: Drafter, params: SamplingParams) -> SamplingParams:
    """The options of a draft's law beside those of the target's."""
    return params if drafter.temperature is None or params.greedy else params.with_temperature(drafter.temperature)


def standing(truth: Truths, q: Tensor, likeliest: Tensor) -> Rows:
    """How likely a draft of the law q stands, given the token that came, and its alpha."""
    at = truth.came[:, None]
    p_y, q_y = truth.p.gather(-1, at)[:, 0], q.gather(-1, at)[:, 0]
    return {
        "ratio": torch.where(p_y > 0, q_y / p_y.clamp_min(1e-300), 0.0),
        "match": laws.shared_noise(truth.p, q, truth.came),
        "greedy": (likeliest == truth.came).double(),
        "alpha": laws.overlap(truth.p, q),
    }


def distances(truth: Truths, q: Tensor, q_soft: Tensor, likeliest: Tensor) -> Rows:
    """The same, and how far the laws are apart."""
    return {
        **standing(truth, q, likeliest),
        "agrees": (likeliest == truth.top).double(),
        "forward": laws.divergence(truth.soft, q_soft),
        "reverse": laws.divergence(q_soft, truth.soft),
        "independent": (truth.p * q).sum(-1),
    }


def model_rows(truth: Truths, logits: Tensor, drafter: Drafter, params: SamplingParams) -> tuple[Rows, Tensor]:
    """Figures of a draft with logits at each row, and alpha at `TEMPERATURES` [T, R], T = 0 where the target's law is a point."""
    own = own_params(drafter, params)
    tuned = [] if params.greedy else [laws.overlap(truth.p, law(logits, params.with_temperature(t))) for t in TEMPERATURES]
    found = distances(truth, law(logits, own), law(logits, plain_law(own)), logits.argmax(-1))
    return found, torch.stack(tuned) if tuned else truth.p.new_zeros((0, len(logits)))


@dataclass
class Proposed:
    """What a drafter said at one root: its drafts, and the law [V] of the first one if it reported one."""

    tokens: list[int]
    law: Tensor | None


def walked_rows(truth: Truths, walk: Seq[Proposed]) -> Rows:
    """Figures of what was proposed, at each row: of its first draft's law, or of the draft as a point mass."""
    p, soft, device = truth.p, truth.soft, truth.p.device
    made = torch.tensor([bool(w.tokens) for w in walk], device=device)
    known = torch.tensor([w.law is not None for w in walk], device=device)
    x = torch.tensor([w.tokens[0] if w.tokens else 0 for w in walk], device=device)
    at = x[:, None]
    alpha, likely = p.gather(-1, at)[:, 0], soft.gather(-1, at)[:, 0]
    hit = (made & (x == truth.came)).double()
    points = {
        "ratio": hit,
        "match": hit,
        "greedy": hit,
        "alpha": alpha,
        "agrees": (x == truth.top).double(),
        # A point mass leaves out whatever else p allows; where p allows nothing else the two are one.
        "forward": torch.where(likely < 1, float("inf"), 0.0),
        "reverse": -likely.log(),
        "independent": alpha,
    }
    kept = ("ratio", "match", "greedy")
    found = {n: v if n in kept else torch.where(made, v, float("nan")) for n, v in points.items()}
    if bool(known.any()):
        q = torch.stack([torch.zeros_like(p[0]) if w.law is None else w.law.to(p) for w in walk])
        own = distances(truth, q, q, q.argmax(-1))
        found = {n: torch.where(known, own[n], v) for n, v in found.items()}
    return found
