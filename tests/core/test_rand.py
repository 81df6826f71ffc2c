"""The counter-based uniforms: a pure function, on the 53-bit grid, and streams that know nothing of each other."""

import math
import random
from itertools import combinations

import pytest

from headstart.core.rand import ACCEPT, CHILD, DRAFT, MASK, POSITION, TAIL, child_seed, key, mix, to_unit, uniform

LANES = (DRAFT, ACCEPT, TAIL, POSITION)
N = 20_000
PINNED = [0.9790978530853444, 0.4364328060323761, 0.9983271916611767]
PINNED_CHILD = 1558478743612347176


def correlation(a: list[float], b: list[float]) -> float:
    """Of two samples of uniforms, with the known mean 1/2 and variance 1/12."""
    return sum((x - 0.5) * (y - 0.5) for x, y in zip(a, b, strict=True)) / len(a) * 12


def chi_square(counts: list[int]) -> float:
    """Standard deviations by which equal-probability counts are too uneven (a normal approximation)."""
    expected = sum(counts) / len(counts)
    freedom = len(counts) - 1
    return (sum((c - expected) ** 2 for c in counts) / expected - freedom) / math.sqrt(2 * freedom)


def test_mix_is_splitmix64():
    """The first outputs of SplitMix64 from state 0, as published with the reference code."""
    golden = 0x9E3779B97F4A7C15
    assert [mix(n * golden & MASK) for n in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_pinned_values():
    """Same numbers on every machine and in every version: a seed is a promise."""
    assert [uniform(0, DRAFT, 1, 0), uniform(42, ACCEPT, 17, 3), uniform(-1, POSITION, 100_000)] == PINNED
    assert child_seed(7, 1) == key(7, CHILD, 1) == PINNED_CHILD


def test_pure_function():
    """No state: the order of the calls, and what other generators do, change nothing."""
    points = [(s, lane, root, i) for s in (0, 5) for lane in LANES for root in (1, 2) for i in range(3)]
    first = [uniform(*p) for p in points]
    random.seed(1)
    assert [uniform(*p) for p in reversed(points)] == first[::-1]


def test_range_and_grid():
    """In [0, 1), on the 2^-53 grid, both ends included where they should be."""
    for i in range(N):
        u = uniform(3, ACCEPT, i)
        assert 0.0 <= u < 1.0
        assert (u * 2**53).is_integer()
    assert to_unit(0) == to_unit((1 << 11) - 1) == 0.0
    assert to_unit(1 << 11) == 2.0**-53
    assert to_unit(MASK) == 1 - 2.0**-53 < 1.0


def test_resolution():
    """Finer than 2^-32: the bits below are there and are coin flips (24-bit uniforms bias tails)."""
    for bit in range(33, 54):
        ones = sum(int(uniform(0, TAIL, i) * 2**bit) & 1 for i in range(2000))
        assert abs(ones - 1000) < 5 * math.sqrt(500)


def test_every_coordinate_matters():
    """No two of many neighbouring points share a number; seeds are taken modulo 2^64."""
    points = [(s, lane, root, i) for s in (0, 1, 2**63) for lane in LANES for root in range(40) for i in range(9)]
    assert len({uniform(*p) for p in points}) == len(points)
    assert uniform(0, DRAFT, 3, 1) != uniform(0, DRAFT, 1, 3)
    assert uniform(-1, DRAFT, 1) == uniform(MASK, DRAFT, 1)
    assert len({child_seed(s, i) for s in range(50) for i in range(50)}) == 2500


@pytest.mark.parametrize("lane", LANES)
def test_looks_uniform(lane):
    """Mean, variance, 64 equal bins, and pairs of neighbours in 16 x 16 bins, along roots and along indices."""
    along_root = [uniform(11, lane, i) for i in range(N)]
    along_index = [uniform(11, lane, i // 8, i % 8) for i in range(N)]
    for sample in (along_root, along_index):
        mean = sum(sample) / N
        assert abs(mean - 0.5) < 5 / math.sqrt(12 * N)
        assert abs(sum((u - 0.5) ** 2 for u in sample) / N - 1 / 12) < 5 * math.sqrt(1 / 180 / N)
        bins, pairs = [0] * 64, [0] * 256
        for u, v in zip(sample, sample[1:] + sample[:1], strict=True):
            bins[int(u * 64)] += 1
            pairs[int(u * 16) * 16 + int(v * 16)] += 1
        assert chi_square(bins) < 5
        assert chi_square(pairs) < 5
        assert abs(correlation(sample, sample[1:] + sample[:1])) < 5 / math.sqrt(N)


def test_streams_are_uncorrelated():
    """Lanes, roots, indices, seeds and children at the same other coordinates: correlation within noise of zero."""
    streams = {f"lane {lane}": [uniform(0, lane, i) for i in range(N)] for lane in LANES}
    streams["next root"] = [uniform(0, DRAFT, i + 1_000_000) for i in range(N)]
    streams["index 1"] = [uniform(0, DRAFT, i, 1) for i in range(N)]
    streams["seed 1"] = [uniform(1, DRAFT, i) for i in range(N)]
    streams["child"] = [uniform(child_seed(0, 0), DRAFT, i) for i in range(N)]
    for a, b in combinations(streams, 2):
        assert abs(correlation(streams[a], streams[b])) < 5 / math.sqrt(N), (a, b)
    for a, b in combinations(LANES, 2):  # beyond correlation: the joint law in 8 x 8 bins
        joint = [0] * 64
        for u, v in zip(streams[f"lane {a}"], streams[f"lane {b}"], strict=True):
            joint[int(u * 8) * 8 + int(v * 8)] += 1
        assert chi_square(joint) < 5
