"""The law of the next token, against an implementation in plain Python that shares nothing with it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from headstart.core.params import SamplingParams
from headstart.ops import sampling
from headstart.ops.sampling import law

GRID = list(itertools.product((0.3, 1.0, 1.5), (0, 1, 5, 50, 80), (1.0, 0.9, 0.5, 1e-6), (0.0, 0.05, 0.4)))


def reference(logits: list[float], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[float]:
    """Temperature, min_p, top_k, top_p, each on the renormalised survivors of the one before; ties with the last are kept."""
    top = max(logits)
    p = [math.exp((x - top) / temperature) for x in logits]

    def keep(threshold: float) -> list[float]:
        kept = [x if x >= threshold else 0.0 for x in p]
        total = math.fsum(kept)
        return [x / total for x in kept]

    p = keep(0.0)
    if min_p > 0:
        p = keep(min_p * max(p))
    if 0 < top_k < len(p):
        p = keep(sorted(p, reverse=True)[top_k - 1])
    if top_p < 1:
        mass = 0.0
        for x in sorted(p, reverse=True):
            mass += x
            if mass >= top_p:
                break
        p = keep(x)
    return p


def rows(count: int, vocab: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def logs(*p: float) -> torch.Tensor:
    return torch.tensor([p], dtype=torch.float64).log()


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), GRID)
def test_law_equals_the_reference(temperature, top_k, top_p, min_p):
    logits = rows(4, 50)
    logits[1] = logits[1].bfloat16().float()  # many equal logits
    logits[2] = logits[2].round()  # still more
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = law(logits, params)
    assert got.dtype is torch.float64 and got.shape == logits.shape
    for row, want in zip(got, logits.tolist(), strict=True):
        want = torch.tensor(reference(want, temperature, top_k, top_p, min_p), dtype=torch.float64)
        assert torch.equal(row > 0, want > 0)
        torch.testing.assert_close(row, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_law_is_one_to_rounding(dtype):
    assert torch.allclose(law(rows(3, 1000).to(dtype), SamplingParams()).sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12)


def test_top_k_comes_before_top_p():
    """On the survivors of top_k=2 the first token alone has .625, so top_p=.6 keeps one; on p itself it would keep two."""
    assert law(logs(0.5, 0.3, 0.2), SamplingParams(top_k=2, top_p=0.6)).tolist() == [[1.0, 0.0, 0.0]]


def test_min_p_comes_before_top_p():
    """min_p leaves .533 and .467, so top_p=.5 keeps one; on p itself it would keep two."""
    assert law(logs(0.4, 0.35, 0.25), SamplingParams(min_p=0.7, top_p=0.5)).tolist() == [[1.0, 0.0, 0.0]]


def test_temperature_comes_before_the_filters():
    """At T = 1/2 the ratio .6 becomes .36, below min_p; and p^2 gives the first token most of the mass."""
    assert law(logs(0.5, 0.3, 0.2), SamplingParams(temperature=0.5, min_p=0.5)).tolist() == [[1.0, 0.0, 0.0]]
    assert law(logs(0.5, 0.3, 0.2), SamplingParams(temperature=0.5, top_p=0.6)).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("vocab", [5, 50, 1030, 2051])
def test_ties_with_the_last_one_kept_are_kept(vocab):
    """Equal logits are equal probabilities wherever they stand, so the law does not depend on the order of ids."""
    logits = torch.full((1, vocab), -3.0)
    logits[0, 1] = 1.0
    ties = sorted({0, 3, vocab - 1, vocab // 2})
    logits[0, ties] = 0.5
    best = sorted({1, *ties})
    for params in (SamplingParams(top_k=2), SamplingParams(top_k=len(best)), SamplingParams(min_p=0.6)):
        assert law(logits, params)[0].nonzero().flatten().tolist() == best
    one = float(law(logits, SamplingParams(top_k=2))[0, 1])
    assert law(logits, SamplingParams(top_k=2, top_p=one + 1e-6))[0].nonzero().flatten().tolist() == best
    assert law(logits, SamplingParams(top_k=2, top_p=one - 1e-6))[0].nonzero().flatten().tolist() == [1]


def test_law_depends_on_the_logits_only():
    """Permuting the ids permutes the law: no filter prefers a low id, not even among equal bf16 logits."""
    logits = rows(1, 3000, 1.0).bfloat16().float()
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    for params in (SamplingParams(top_k=40), SamplingParams(top_p=0.7), SamplingParams(top_p=0.95, top_k=900, min_p=0.01)):
        kept = law(logits, params)[0] > 0
        assert torch.equal(law(logits[:, order], params)[0] > 0, kept[order])


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0])
def test_top_p_head_equals_the_full_sort(monkeypatch, top_p, spread):
    """Flat laws need more than the head, peaked ones do not: the same law either way."""
    monkeypatch.setenv("HEADSTART_KERNELS", "torch")
    logits, params = rows(3, 5000, spread), SamplingParams(top_p=top_p)
    head = law(logits, params)
    monkeypatch.setattr(sampling, "TOP_P_HEAD", 5000)
    assert torch.equal(head, law(logits, params))


MANY = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=20, min_p=0.02),
    SamplingParams(temperature=1.3, top_k=50, top_p=0.8, min_p=0.01),
]


@pytest.mark.parametrize("params", MANY, ids=range(len(MANY)))
@pytest.mark.parametrize("vocab", [50, 2000])
def test_a_row_does_not_feel_its_neighbours(params, vocab):
    """Flat rows beside peaked ones: every row of a call equals the call with that row alone, exactly."""
    logits = rows(7, vocab) * torch.tensor([0.01, 1.0, 3.0, 0.0, 0.1, 2.0, 5.0])[:, None]
    together = law(logits, params)
    for i in range(len(logits)):
        assert torch.equal(together[i], law(logits[i : i + 1], params)[0])


def test_a_neighbour_does_not_change_a_row_on_the_border():
    """top_p equal to the mass of the head, to the last bit: whether a neighbour needs the full sort must not matter."""
    logits = torch.cat((rows(40, 1500, 0.5), torch.zeros(1, 1500)))
    for i in range(40):
        head = law(logits[i : i + 1], SamplingParams())[0].sort(descending=True).values[: sampling.TOP_P_HEAD]
        for border in (float(head.sum()), float(head.cumsum(0)[-1])):
            params = SamplingParams(top_p=border)
            assert torch.equal(law(logits[i : i + 1], params)[0], law(logits[[i, 40]], params)[0])


@pytest.mark.parametrize("temperature", [0, 1e-6, 9.9e-6])
def test_below_the_border_the_law_is_one_hot(temperature):
    logits = rows(5, 50)
    logits[4, [7, 30]] = 99.0  # a tie: the first
    got = law(logits, SamplingParams(temperature=temperature, top_k=3, top_p=0.5, min_p=0.1))
    assert torch.equal(got, torch.nn.functional.one_hot(logits.argmax(-1), 50).double())
    assert got[4, 7] == 1


@pytest.mark.parametrize("temperature", [1e-5, 1e-3])
def test_just_above_the_border_it_is_sharp_and_finite(temperature):
    """No overflow in the division, and the argmax has all of it; a tie is shared."""
    logits = rows(4, 50)
    logits[3, [7, 30]] = 99.0
    got = law(logits, SamplingParams(temperature=temperature))
    assert bool(torch.isfinite(got).all())
    for row, want in zip(got[:3], logits.argmax(-1), strict=False):
        assert row[want] > 0.99
    assert got[3, 7] == got[3, 30] == 0.5


def test_a_large_temperature_is_nearly_flat():
    got = law(rows(2, 50), SamplingParams(temperature=1e4))
    torch.testing.assert_close(got, torch.full_like(got, 1 / 50), rtol=2e-3, atol=0)


@pytest.mark.parametrize("temperature", [1e-5, 0.3, 1.0, 1e4])
def test_extreme_logits(temperature):
    """What a bias of +-100 or a mask of -1e4 leaves behind: finite laws, and no mass where there is none."""
    logits = torch.tensor([[1e4, 0.0, -1e4, 1e4], [-1e4, -1e4, -1e4, -1e4], [3e38, -3e38, 0.0, 0.0], [0.0, 100.0, -100.0, 0.5]])
    for options in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
        got = law(logits, SamplingParams(temperature=temperature, **options))
        assert bool(torch.isfinite(got).all())
        torch.testing.assert_close(got.sum(-1), torch.ones(4, dtype=torch.float64), rtol=1e-12, atol=0)
        assert torch.equal(got[1], torch.full((4,), 0.25, dtype=torch.float64))
        assert got[2, 0] == 1
        assert got[0, 0] == got[0, 3]


def test_the_law_of_bf16_logits_is_that_of_their_values():
    logits = rows(2, 50).bfloat16()
    assert torch.equal(law(logits, SamplingParams(top_k=9)), law(logits.double(), SamplingParams(top_k=9)))


def test_filters_that_keep_all_or_one():
    logits = rows(3, 20)
    plain = law(logits, SamplingParams())
    for params in (SamplingParams(top_k=-1), SamplingParams(top_k=20), SamplingParams(top_k=1000), SamplingParams(top_p=1.0)):
        assert torch.equal(law(logits, params), plain)
    one = law(logits, SamplingParams(temperature=0))
    for params in (SamplingParams(top_k=1), SamplingParams(top_p=1e-9), SamplingParams(min_p=1.0)):
        assert torch.equal(law(logits, params), one)


def test_a_vocabulary_of_one():
    for params in MANY:
        assert law(torch.tensor([[3.0]]), params).tolist() == [[1.0]]
