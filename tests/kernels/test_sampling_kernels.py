"""Laws, races, choices and judgements of the kernels: those of the torch code, and the same bits of a row beside any other rows."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from headstart.core import rand
from headstart.core.params import SamplingParams
from headstart.core.types import Proposal, Sequence
from headstart.kernels import library
from headstart.kernels import sampling as kernels
from headstart.ops.noise import race
from headstart.ops.sampling import law
from headstart.ops.verify import Fault, judge, verify_batch
from tests.kernels.test_products import needs_kernels

pytestmark = needs_kernels

GRID = [
    SamplingParams(temperature=t, min_p=m, top_k=k, top_p=p)
    for t, m, k, p in itertools.product((0.3, 1.0, 2.0), (0.0, 0.05), (0, 1, 50, 4097), (1.0, 0.9, 0.5))
]
SIZES = (1, 2, 7, 64, 65, 4097)


@pytest.fixture
def by(path, monkeypatch):
    """The path; `law` and `race` themselves run on torch here."""
    if path == "amx":
        pytest.skip("amx computes this as avx512 does")
    chosen = library.active()
    monkeypatch.setenv(library.VARIABLE, "torch")
    return chosen


def rows(count: int, size: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * spread


def same_law(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(got > 0, wanted > 0)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_laws(by, size):
    """Of plain rows, of rows with a mask, and of rows with many ties."""
    logits = rows(7, size)
    logits[1:3, 1::3] = float("-inf")
    logits[3:5] = logits[3:5].round()
    for params in GRID:
        same_law(kernels.law(by, logits, params), law(logits, params))


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 30.0])
def test_laws_of_a_whole_vocabulary(by, spread):
    logits = rows(2, 49153, spread)
    for params in (
        SamplingParams(),
        SamplingParams(top_p=0.95),
        SamplingParams(top_k=900),
        SamplingParams(top_k=1),
        SamplingParams(min_p=0.3),
    ):
        same_law(kernels.law(by, logits, params), law(logits, params))


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.51, 0.75, 0.76])
@pytest.mark.parametrize("size", [2, 4, 8, 64])
def test_exact_borders_of_top_p(by, top_p, size):
    """Sums that reach top_p exactly: equal tokens tie, so all stay, and a mask or a token far below changes nothing."""
    logits = torch.zeros(1, size + 2)
    logits[0, 1], logits[0, -1] = float("-inf"), -800.0
    got = kernels.law(by, logits, SamplingParams(top_p=top_p))
    assert torch.equal(got, law(logits, SamplingParams(top_p=top_p))) and int((got == 1 / size).sum()) == size


@pytest.mark.parametrize("temperature", [1e-5, 0.3, 1.0, 1e4])
def test_extremes(by, temperature):
    """Down to the smallest numbers there are, and NaN where there is no law, in that row only."""
    logits = torch.tensor([[1e4, 0.0, -1e4, 1e4], [3e38, -3e38, 0.0, 0.0], [0.0, -700.0, -744.0, -746.0], [-1e4] * 4])
    params = SamplingParams(temperature=temperature)
    got, wanted = kernels.law(by, logits, params), law(logits, params)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-320)
    for bad in ([float("nan"), 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, float("inf")], [float("-inf")] * 4):
        for options in (params, SamplingParams(temperature=temperature, top_k=2, top_p=0.9, min_p=0.1)):
            got = kernels.law(by, torch.cat([logits, torch.tensor([bad])]), options)
            assert bool(got[4].isnan().all()) and torch.equal(got[:4], kernels.law(by, logits, options))


def some_choices(by, logits: torch.Tensor, options: list[SamplingParams]) -> list[int]:
    """Every row by other options."""
    asked = [(row[None], options[i % len(options)], [rand.key(i, rand.POSITION, 9)]) for i, row in enumerate(logits)]
    return [ids[0] for ids in kernels.choose(by, asked)]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_bits_beside_any_other(by, threads):
    logits, options = rows(9, 4097), [SamplingParams(temperature=0), *GRID[::5]]
    wanted = [kernels.law(by, logits, p) for p in GRID[::5]]
    ids = some_choices(by, logits, options)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for params, all_rows in zip(GRID[::5], wanted, strict=True):
            for count in range(1, 8):
                assert torch.equal(kernels.law(by, logits[:count], params), all_rows[:count])
                assert torch.equal(kernels.law(by, logits[8 - count :: 2], params), all_rows[8 - count :: 2])
        for count in range(10):
            assert some_choices(by, logits[:count], options) == ids[:count]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("size", [*SIZES, 49152])
def test_races(by, size):
    """The winner is that of the torch code; on laws with holes too, and where entries stand for other ids."""
    generator = torch.Generator().manual_seed(size)
    whole = law(rows(1, size), SamplingParams())[0]
    holes = whole * (torch.rand(size, generator=generator) < 0.05)
    holes[size // 2] = 5e-324
    names = torch.randperm(2 * size, generator=generator)[:size].sort().values
    for seed in range(400 if size < 10_000 else 100):
        key = rand.key(seed, rand.POSITION, 3)
        for weights in (whole, holes):
            assert kernels.race(by, weights, key, None) == race(weights, seed, 3)
            assert kernels.race(by, weights, key, names) == race(weights, seed, 3, names)


@pytest.mark.parametrize("size", [*SIZES, 49152])
def test_choices_are_the_race_on_the_law(by, size):
    """Also where the law is never made. Many temperatures, since the bound in fp32 must hold for each."""
    options = [SamplingParams(temperature=t) for t in (1e-5, 0.05, 0.3, 1.0, 2.0, 1e4)]
    options += [SamplingParams(top_k=20), SamplingParams(top_p=0.8), SamplingParams(temperature=0.7, min_p=0.02)]
    logits = rows(4, size)
    logits[1] = logits[1].round() * 20
    logits[2] *= 30
    for params in options:
        p = law(logits, params)
        for seed in range(20 if size > 10_000 else 80):
            keys = [rand.key(seed, rand.POSITION, 7 + i) for i in range(4)]
            asked = [(logits, params, keys), (logits[1::2], params, keys[1::2])]
            wanted = [race(row, seed, 7 + i) for i, row in enumerate(p)]
            assert kernels.choose(by, asked) == [wanted, wanted[1::2]]


@pytest.mark.parametrize("size", [*SIZES, 49152])
def test_greedy_choices_and_rows_that_are_not_finite(by, size):
    logits, greedy = rows(6, size).round(), SamplingParams(temperature=0)  # many ties: the first wins
    wanted = logits.argmax(-1).tolist()
    assert kernels.choose(by, [(logits, greedy, [0] * 6)]) == [wanted]
    for bad, at in itertools.product((float("nan"), float("inf"), float("-inf")), {0, size // 2, size - 1}):
        broken = logits.clone()
        broken[2, at] = bad
        for params in (greedy, SamplingParams(), SamplingParams(top_k=3)):
            (got,) = kernels.choose(by, [(broken, params, [5] * 6)])
            assert got[2] == -1 and min(got[:2] + got[3:]) >= 0


LAST = 1 - 2.0**-53
RULES = ("rejection", "block")


def some_drafts(r: random.Random, by, size: int, params: SamplingParams, rule: str) -> kernels.Drafted:
    """Up to 5 drafts: laws with holes, that of the target itself, drafts of probability 0 under either law, uniforms at both ends."""
    k = r.randrange(1, 6)
    logits = rows(k + 1, size, r.choice((0.1, 3.0, 30.0)), r.randrange(1 << 30))
    if r.random() < 0.3:
        logits = logits.round()  # ties
    other = logits[:k] if r.random() < 0.2 else logits[:k] + rows(k, size, r.choice((0.05, 1.0, 3.0)), r.randrange(1 << 30))
    q = kernels.law(by, other, r.choice((params, SamplingParams(), SamplingParams(top_k=5))))
    drafts = [int(torch.multinomial(row, 1)) if r.random() < 0.9 else r.randrange(size) for row in q]
    accept = [r.choice((0.0, r.random() / 4, r.random(), LAST)) for _ in range(k)]
    return kernels.Drafted(logits, params, drafts, q, rule, accept, r.choice((0.0, r.random(), r.random())))


def by_the_law(by, d: kernels.Drafted) -> tuple[int, int]:
    return judge(kernels.law(by, d.logits, d.params), d.drafts, d.laws, d.rule, d.accept, d.tail)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [*SIZES, 49152])
def test_judgements(by, size, rule):
    """The verdict of `judge` on the same law, alone and in one call with others."""
    r, seen = random.Random(size), set()
    torch.manual_seed(size)
    asked = [some_drafts(r, by, size, r.choice(GRID), rule) for _ in range(20 if size > 10_000 else 300)]
    wanted = [by_the_law(by, d) for d in asked]
    assert [kernels.judge(by, [d])[0] for d in asked] == wanted
    assert kernels.judge(by, asked) == wanted
    for d, (accepted, tail) in zip(asked, wanted, strict=True):
        assert 0 <= tail < size
        seen.add("none" if accepted == 0 else "all" if accepted == len(d.drafts) else "some")
    assert seen == ({"none", "some", "all"} if size > 2 else {"none", "some", "all"} & seen)


@pytest.mark.parametrize("rule", RULES)
def test_a_tail_is_never_an_id_that_is_left_nothing(by, rule):
    """At the very end of the running sum too; where nothing is left the law itself is drawn from."""
    r = random.Random(rule)
    torch.manual_seed(0)
    for size in (7, 65, 4097):
        for _ in range(100):
            d = some_drafts(r, by, size, SamplingParams(top_k=4), rule)._replace(tail=LAST)
            ((accepted, tail),) = kernels.judge(by, [d])
            assert kernels.law(by, d.logits, d.params)[accepted, tail] > 0
        never = kernels.law(by, d.logits, d.params)[:-1]  # the target's own laws, and drafts that neither has
        d = d._replace(laws=never, drafts=[int(row.argmin()) for row in never])
        assert kernels.judge(by, [d]) == [(0, int(never[0].nonzero()[-1]))]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_judgement_is_the_same_on_any_number_of_threads(by, threads):
    r = random.Random(1)
    torch.manual_seed(0)
    asked = [some_drafts(r, by, 4097, GRID[i], RULES[i % 2]) for i in range(len(GRID))]
    wanted = [by_the_law(by, d) for d in asked]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert kernels.judge(by, asked) == wanted
    finally:
        torch.set_num_threads(before)


def outcome(of) -> tuple:
    return (of.accepted, str(of)) if isinstance(of, Fault) else (of.accepted, of.tail)


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_judged_as_torch_judges_them(by, rule, monkeypatch):
    """Through `verify_batch`: options that shape logits, rows that have no law, and sequences of many kinds in a batch."""
    r, steps = random.Random(3), []
    torch.manual_seed(0)
    options = [{}, {"allowed_token_ids": [1, 5, 6, 40]}, {"logit_bias": {3: 4.0}}, {"repetition_penalty": 1.3, "top_p": 0.9}]
    for i in range(200):
        d = some_drafts(r, by, 65, SamplingParams(**options[i % 4]), rule)
        if r.random() < 0.4:
            d.logits[r.randrange(len(d.logits)), r.randrange(65)] = r.choice((float("nan"), float("inf"), float("-inf")))
        laws = r.choice((d.laws, d.laws, None))
        steps.append((d.logits, Proposal(d.drafts, laws), Sequence(0, "r", 0, d.params, [3] * 9, 9, i, rule)))
    wanted = [outcome(v) for v in verify_batch(steps)]
    monkeypatch.setenv(library.VARIABLE, by.path)
    assert [outcome(v) for v in verify_batch(steps)] == wanted
    assert len({accepted for accepted, _ in wanted}) > 3
    assert sum(isinstance(tail, str) for _, tail in wanted) > 20


def test_what_the_kernels_take(by, monkeypatch):
    """Rows that lie apart are taken as they are, so that one of them alone gives what it gives among others."""
    assert kernels.serving(rows(2, 5), torch.float32) is None  # torch was asked for
    monkeypatch.setenv(library.VARIABLE, by.path)
    apart = rows(3, 70)[:, :65]
    assert kernels.serving(apart, torch.float32) == by
    assert torch.equal(kernels.law(by, apart, GRID[0]), kernels.law(by, apart.contiguous(), GRID[0]))
    for other in (rows(3, 70).double(), rows(3, 70).bfloat16(), rows(3, 70).t(), rows(0, 70), rows(2, 5).to("meta")):
        assert kernels.serving(other, torch.float32) is None
