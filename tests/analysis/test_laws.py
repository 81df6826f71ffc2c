"""The tensor functions against their definitions on plain numbers."""

from __future__ import annotations

import math

import pytest
import torch

from headstart.analysis import laws
from headstart.core import theory


def test_they_agree_with_theory() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand((20, 7), generator=generator, dtype=torch.float64) ** 3 for _ in range(2))
    p[3, 2] = q[5, 1] = 0  # what only one of them allows
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    rows = list(zip(p.tolist(), q.tolist(), strict=True))
    assert laws.overlap(p, q).tolist() == pytest.approx([theory.overlap(a, b) for a, b in rows])
    assert laws.divergence(p, q).tolist() == pytest.approx([theory.divergence(a, b) for a, b in rows])
    assert laws.divergence(p, q)[5] == math.inf and laws.divergence(q, p)[3] == math.inf
    mean = sum(p[:, v] * laws.shared_noise(p, q, torch.full((20,), v)) for v in range(7))
    assert mean.tolist() == pytest.approx([theory.shared_noise(a, b) for a, b in rows])
    one = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    assert laws.entropy(one).item() == 0 and laws.divergence(one, one).item() == 0 and laws.overlap(one, one).item() == 1
    assert (
        laws.shared_noise(one, one, torch.tensor([1])).item() == 1
        and laws.shared_noise(p[:1], one.new_zeros(1, 7), torch.tensor([0])).item() == 0
    )
