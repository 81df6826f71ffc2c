"""Noise on tensors: the same numbers as the core, laws that are hit, and the coupling that drafts rely on."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from headstart.core import acceptance, rand
from headstart.ops.noise import pick, race, uniforms

stats = pytest.importorskip("scipy.stats")

SIZES = (7, 100, 8193, 151936)  # GPU kernels and tiles: sizes that are no multiple of anything
SEEDS = (0, 1, -1, 12345, -(1 << 63), (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x9E3779B97F4A7C15)
LAST = 1 - 2.0**-53  # the largest uniform there is


def tensor(law) -> torch.Tensor:
    return torch.tensor(law, dtype=torch.float64)


def random_law(generator: torch.Generator, size: int, spread: float = 1.5) -> torch.Tensor:
    return torch.softmax(torch.randn(size, generator=generator, dtype=torch.float64) * spread, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_uniforms_are_the_core_ones_bit_for_bit(seed):
    ids = torch.tensor([0, 1, 2, 63, 1000, 151935, (1 << 31) - 1, (1 << 62) + 3])
    for lane in (rand.DRAFT, rand.ACCEPT, rand.TAIL, rand.POSITION):
        for root in (0, 1, 2, 77, 10**6, (1 << 40) + 1):
            assert uniforms(seed, lane, root, ids).tolist() == [rand.uniform(seed, lane, root, i) for i in ids.tolist()]


def test_uniforms_of_many_seeds():
    """A further few thousand points at random, so that every bit of the mixer is met with both values."""
    for i in range(300):
        seed, root = rand.key(1, i), rand.key(2, i) >> 40
        ids = torch.tensor([rand.key(3, i, j) >> 45 for j in range(10)])
        assert uniforms(seed, rand.POSITION, root, ids).tolist() == [rand.uniform(seed, rand.POSITION, root, j) for j in ids.tolist()]


def test_race_follows_the_law():
    law = tensor([0.3, 0.0, 0.2, 0.15, 0.0, 0.1, 0.1, 0.05, 0.05, 0.04, 0.01, 0.0])
    draws = 6000
    seen = Counter(race(law, seed, seed % 7) for seed in range(draws))
    possible = law.nonzero().flatten().tolist()
    assert set(seen) <= set(possible)
    assert stats.chisquare([seen[i] for i in possible], [draws * float(law[i]) for i in possible], sum_check=False).pvalue > 1e-3


def test_race_of_neighbouring_positions_is_independent():
    law, draws = tensor([0.5, 0.3, 0.2]), 3000
    seen = Counter((race(law, seed, 10), race(law, seed, 11)) for seed in range(draws))
    cells = [(i, j) for i in range(3) for j in range(3)]
    expected = [draws * float(law[i] * law[j]) for i, j in cells]
    assert stats.chisquare([seen[c] for c in cells], expected, sum_check=False).pvalue > 1e-3


@pytest.mark.parametrize("size", SIZES)
def test_race_never_leaves_the_support(size):
    generator = torch.Generator().manual_seed(size)
    for seed in range(20 if size < 10_000 else 4):
        law = random_law(generator, size, 4.0)
        law = law * (torch.rand(size, generator=generator) < 0.3)
        law[-1], law[0] = 0.0, 0.0
        law[size // 2] = 5e-324  # the smallest number there is
        law = law / law.sum()
        choice = race(law, -seed, 3)
        assert 0 <= choice < size and law[choice] > 0
    certain = torch.zeros(size, dtype=torch.float64)
    certain[size - 1] = 1.0
    assert race(certain, 5, 5) == size - 1


def match_rate(p: torch.Tensor, q: torch.Tensor, draws: int) -> float:
    return sum(race(p, seed, 1) == race(q, seed, 1) for seed in range(draws)) / draws


def exact_match(p: torch.Tensor, q: torch.Tensor) -> float:
    """P(same id) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) (Daliri, Musco, Suresh 2408.07978)."""
    both = ((p > 0) & (q > 0)).nonzero().flatten().tolist()
    return sum(1 / float(torch.maximum(p / p[i], q / q[i]).sum()) for i in both)


def test_coupling_of_the_worked_example():
    """verification.md, section 6: .6308, where rejection reaches .70 and independent samples .31."""
    p, q = tensor([0.5, 0.3, 0.2]), tensor([0.2, 0.3, 0.5])
    assert exact_match(p, q) == pytest.approx(0.6308, abs=5e-5)
    draws = 5000
    assert abs(match_rate(p, q, draws) - 0.6308) < 4 * math.sqrt(0.25 / draws)


def test_coupling_bound():
    """P(match) is at least (1 - TV) / (1 + TV), and is what the formula says."""
    generator, draws = torch.Generator().manual_seed(0), 1200
    for _ in range(4):
        p, q = random_law(generator, 8), random_law(generator, 8)
        distance = float((p - q).abs().sum()) / 2
        rate, slack = match_rate(p, q, draws), 4 * math.sqrt(0.25 / draws)
        assert rate > (1 - distance) / (1 + distance) - slack
        assert abs(rate - exact_match(p, q)) < slack
    assert match_rate(p, p, 200) == 1.0


@pytest.mark.parametrize("size", SIZES)
def test_pick_equals_the_core(size):
    """Integer weights, so that sums are exact: the same id for uniforms at both ends, on the borders and between."""
    generator = torch.Generator().manual_seed(size)
    weights = torch.randint(0, 4, (size,), generator=generator).double()
    weights[0] = weights[-1] = 0.0
    weights[1] = 1.0
    total, plain = weights.sum().item(), weights.tolist()
    borders = [1 / total, (total - 1) / total, 0.5]
    for u in [0.0, 2.0**-53, LAST, *borders, *(rand.uniform(1, rand.TAIL, i) for i in range(5 if size > 10_000 else 40))]:
        choice = pick(weights, u)
        assert choice == acceptance.pick(plain, u)
        assert 0 < choice < size - 1 and weights[choice] > 0


@pytest.mark.parametrize("size", SIZES)
def test_pick_stays_in_range_on_real_laws(size):
    generator = torch.Generator().manual_seed(size)
    for scale in (1.0, 1e-300, 1e300, 0.1):
        law = random_law(generator, size, 8.0) * scale
        for u in (0.0, 0.5, 1 - 1e-12, LAST):
            assert 0 <= pick(law, u) < size


def test_pick_of_a_single_id():
    weights = torch.zeros(9, dtype=torch.float64)
    weights[4] = 1e-12
    assert {pick(weights, u) for u in (0.0, 0.3, LAST)} == {4}
    weights[4] = 5e-324  # here u * total rounds up to the total, and no running sum is above it
    assert pick(weights, LAST) == acceptance.pick(weights.tolist(), LAST) == 4


def test_pick_follows_the_law():
    law, draws = tensor([0.4, 0.0, 0.35, 0.2, 0.05]), 6000
    seen = Counter(pick(law * 3, rand.uniform(seed, rand.TAIL, 9)) for seed in range(draws))
    assert seen[1] == 0
    kept = [0, 2, 3, 4]
    assert stats.chisquare([seen[i] for i in kept], [draws * float(law[i]) for i in kept], sum_check=False).pvalue > 1e-3
