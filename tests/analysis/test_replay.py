"""Replay against speculation itself: the expected number of passes, by enumeration of every draft, verdict and tail."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest

from headstart.analysis.replay import block_chain, chain, passes, point_chain, windows
from headstart.core import theory
from headstart.core.acceptance import block_weights, residual

LENGTH = 4


def law(seed: int, prefix: tuple[int, ...], size: int = 3) -> list[float]:
    r = random.Random(f"{seed} {prefix}")
    w = [r.random() ** 2 for _ in range(size)]
    return [x / sum(w) for x in w]


def target(prefix: tuple[int, ...]) -> list[float]:
    return law(1, prefix)


def draft(prefix: tuple[int, ...]) -> list[float]:
    return law(2, prefix)


def block_outcomes(prefix: tuple[int, ...], k: int):
    """(probability, tokens emitted) of every way a step can go under block verification; token verification below."""
    for x in itertools.product(range(3), repeat=k):
        rows = [target(prefix + x[:i]) for i in range(k + 1)]
        qs = [draft(prefix + x[:i]) for i in range(k)]
        drawn = np.prod([qs[i][t] for i, t in enumerate(x)]) if k else 1.0
        w = block_weights([rows[i][t] for i, t in enumerate(x)], [qs[i][t] for i, t in enumerate(x)])
        h = [1.0]
        for i in range(1, k + 1):
            z = sum(max(w[i] * a - b, 0) for a, b in zip(rows[i], qs[i], strict=True)) if i < k else 0.0
            h.append(w[k] if i == k else z / (z + 1 - w[i]) if z + 1 - w[i] > 0 else 1.0)
        for kept in range(k + 1):
            chance = drawn * h[kept] * np.prod([1 - h[i] for i in range(kept + 1, k + 1)])
            tail = rows[k] if kept == k else residual(rows[kept], qs[kept], w[kept])
            yield from ((chance * t / sum(tail), (*x[:kept], v)) for v, t in enumerate(tail))


def token_outcomes(prefix: tuple[int, ...], k: int):
    for x in itertools.product(range(3), repeat=k):
        chance = 1.0
        for i, t in enumerate(x):
            p, q = target(prefix + x[:i]), draft(prefix + x[:i])
            stands = min(1.0, p[t] / q[t])
            left = residual(p, q)
            yield from ((chance * q[t] * (1 - stands) * r / sum(left) * rest(x, i, prefix), (*x[:i], v)) for v, r in enumerate(left))
            chance *= q[t] * stands
        yield from ((chance * t, (*x, v)) for v, t in enumerate(target(prefix + x)))


def rest(x: tuple[int, ...], i: int, prefix: tuple[int, ...]) -> float:
    """The drafts behind the first failure are drawn too: each outcome of them counts."""
    return float(np.prod([draft(prefix + x[:j])[x[j]] for j in range(i + 1, len(x))]))


def expected_passes(outcomes, most: int) -> float:
    @cache
    def value(prefix: tuple[int, ...]) -> float:
        if len(prefix) == LENGTH:
            return 0.0
        k = min(most, LENGTH - len(prefix) - 1)
        return 1 + sum(p * value(prefix + new) for p, new in outcomes(prefix, k))

    return value(())


def by_replay(make, most: int) -> float:
    total = 0.0
    for y in itertools.product(range(3), repeat=LENGTH):
        ps, qs = zip(*((target(y[:i])[t], draft(y[:i])[t]) for i, t in enumerate(y)), strict=True)
        total += float(np.prod(ps)) * passes(make(np.array(qs) / np.array(ps)), np.full(LENGTH, most), LENGTH, most).count
    return total


@pytest.mark.parametrize("k", [1, 2, 3])
def test_rejection_and_block_need_the_passes_that_replay_says(k: int) -> None:
    token, block = expected_passes(token_outcomes, k), expected_passes(block_outcomes, k)
    assert by_replay(lambda r: chain(windows(np.minimum(r, 1), 5)), k) == pytest.approx(token)
    assert by_replay(lambda r: block_chain(windows(r, 5)), k) == pytest.approx(block)
    assert block <= token + 1e-12 and (k == 1 or block < token) and token < LENGTH


def test_shared_noise_by_replay() -> None:
    """A step under match: both races choose v with probability g(v), else the target's choice ends the step."""

    def gumbel(p: list[float], q: list[float], v: int) -> float:
        return 1 / sum(max(a / p[v], b / q[v]) for a, b in zip(p, q, strict=True))

    def outcomes(prefix: tuple[int, ...], k: int, new: tuple[int, ...] = (), chance: float = 1.0):
        p = target(prefix + new)
        if k == 0:
            yield from ((chance * a, (*new, v)) for v, a in enumerate(p))
            return
        q = draft(prefix + new)
        for v in range(3):
            yield chance * (p[v] - gumbel(p, q, v)), (*new, v)
            yield from outcomes(prefix, k - 1, (*new, v), chance * gumbel(p, q, v))

    total = 0.0
    for y in itertools.product(range(3), repeat=LENGTH):
        ps = np.array([target(y[:i])[t] for i, t in enumerate(y)])
        kept = np.array([gumbel(target(y[:i]), draft(y[:i]), t) for i, t in enumerate(y)]) / ps
        total += float(np.prod(ps)) * passes(chain(windows(kept, 3)), np.full(LENGTH, 2), LENGTH, 2).count
    assert total == pytest.approx(expected_passes(outcomes, 2))


def test_point_masses_are_followed_as_they_would_go() -> None:
    answer = [5, 6, 7, 5, 6, 8]
    drafts = [[5, 6], [], [7, 5, 6, 7], [1], [6, 8], [3]]
    stands = point_chain(drafts, answer, 4)
    assert stands[2].tolist() == [1, 1, 1, 1, 0]
    p = passes(stands, np.array([len(d) for d in drafts]), 6, 4)
    # Root 0 keeps both and adds the third token; root 3 drafts one that falls; root 4 may draft one, since two tokens are left.
    assert p.visits.tolist() == [1, 0, 0, 1, 1, 0] and p.count == 3 and p.drafts.tolist() == [2, 0, 3, 1, 1, 0] and p.first == 3
    assert p.kept.tolist() == [3, 2, 1, 0, 0] and p.reached.tolist() == [3, 1, 0, 0]
    # One draft a step: root 0 keeps one, 2 one, 4 one.
    assert passes(stands, np.array([len(d) for d in drafts]), 6, 1).visits.tolist() == [1, 0, 1, 0, 1, 0]


def test_a_text_that_ends_early_ends_its_step() -> None:
    sure = passes(chain(windows(np.ones(5), 4)), np.full(5, 4), 100, 4)
    assert sure.visits.tolist() == [1, 0, 0, 0, 0] and sure.drafts.tolist() == [4] * 5 and sure.first == 5
    assert passes(chain(windows(np.ones(3), 4)), np.full(3, 4), 100, 4).first == 3
    # The last pass made four drafts and three of them lie behind the end.
    late = passes(chain(windows(np.array([0.0, 1, 1]), 4)), np.full(3, 4), 100, 4)
    assert late.visits.tolist() == [1, 1, 0] and late.kept.tolist() == [2, 1, 1, 0, 0] and late.reached.tolist() == [2, 1, 0, 0]


def test_long_texts_of_constant_alpha_give_the_closed_form() -> None:
    alpha, k, count = 0.7, 4, 20_000
    p = passes(chain(windows(np.full(count, alpha), k)), np.full(count, k), count, k)
    assert count / p.count == pytest.approx(theory.expected_tokens([alpha] * k), rel=1e-3)
    assert (p.kept[1:] / p.kept[:-1]).tolist() == pytest.approx([alpha] * k, rel=1e-3)
