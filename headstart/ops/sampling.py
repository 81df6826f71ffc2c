"""The law of the next token: one function for plain decoding, for every verified row, and for the draft's own draws.

Order: shaped logits (`shaping.py`) in fp32 -> temperature -> min_p -> top_k -> top_p, each filter on the renormalised survivors of the one
before. Filters keep every token that ties with the last one kept, so the law is a function of the logits alone.

Where the kernels serve they compute the same (kernels/sampling.py); what follows here is what that means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.core.params import SamplingParams
from headstart.kernels import sampling as kernels

# top_p looks at this many largest probabilities before it pays for sorting the whole vocabulary.
TOP_P_HEAD = 1024


def law(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities fp64 [R, V] of rows of logits [R, V]; one-hot on the argmax when `params.greedy`."""
    if params.greedy:
        choice = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, choice, 1.0)
    if by := kernels.serving(logits, torch.float32):
        return kernels.law(by, logits, params)
    scaled = logits.double()
    scaled = (scaled - scaled.amax(-1, keepdim=True)) / params.temperature
    p = torch.softmax(scaled, -1)
    vocab = p.shape[-1]
    if params.min_p > 0:
        p = _keep(p, p >= params.min_p * p.amax(-1, keepdim=True))
    if 0 < params.top_k < vocab:
        kth = p.topk(params.top_k, -1).values[:, -1:]
        p = _keep(p, p >= kth)
    if params.top_p < 1:
        p = _keep(p, p >= _top_p_threshold(p, params.top_p))
    return p


def _keep(p: Tensor, kept: Tensor) -> Tensor:
    p = torch.where(kept, p, 0.0)  # several times faster than p * kept
    return p / p.sum(-1, keepdim=True)


def _top_p_threshold(p: Tensor, top_p: float) -> Tensor:
    """The smallest probability [R, 1] of the shortest run of largest ones whose mass reaches top_p."""
    head = p.topk(min(TOP_P_HEAD, p.shape[-1]), -1).values
    out = _last_kept(head, top_p)
    if head.shape[-1] < p.shape[-1]:
        # Asked of the same running sum that counts above, so that a row keeps as many whether or not it needs the sort.
        for row in (head.cumsum(-1)[:, -1] < top_p).nonzero().squeeze(1).tolist():
            # Tokens below this have less than (1 - top_p) / 2 together, so the run ends before them: no need to sort them.
            small = (1 - top_p) / (2 * p.shape[-1])
            out[row] = _last_kept(p[row][p[row] >= small].sort(descending=True).values[None], top_p)[0]
    return out


def _last_kept(largest: Tensor, top_p: float) -> Tensor:
    """Of probabilities in falling order [R, N] the first [R, 1] at which their sum reaches top_p; else the last."""
    before = (largest.cumsum(-1)[:, :-1] < top_p).sum(-1, keepdim=True)  # how many stand before it; the first always is kept
    return largest.gather(-1, before)
