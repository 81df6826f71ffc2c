"""The exact prover: the output law of a verification rule, in fractions.Fraction, with no tolerance and no sampling.

The rules in `headstart.core.acceptance` take their uniforms as arguments. Here they get `Uniform` objects instead of
numbers. A comparison with such an object that could go either way splits its interval in two; `outcomes` runs the rule
again and again until every combination of branches has been taken, and weighs each by the lengths of the intervals
left. So the real functions are integrated over all uniforms, whatever thresholds they use: the prover knows none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from random import Random

from headstart.core.acceptance import pick, verify_block, verify_match, verify_token
from headstart.core.types import Verdict

Prefix = tuple[int, ...]
Law = list[Fraction]
Model = Callable[[Prefix], Law]  # the law of the next token after a prefix
Rule = Callable[..., Verdict]  # (p, drafts, q, u, u_tail), as verify_token
Drafter = Callable[[int], Iterator[tuple[Fraction, Prefix, list[Law] | None]]]  # k -> (probability, drafts, reported laws)


# Uniforms as intervals


class Path:
    """One way through the comparisons: `script` says how the first ones went, later ones come out True."""

    def __init__(self, script: tuple[bool, ...]) -> None:
        self.script, self.taken = script, ()
        self.interval: dict[object, tuple[Fraction, Fraction]] = {}

    def below(self, name: object, threshold: Fraction) -> bool:
        """Whether the uniform called `name` is below the threshold, on this path."""
        low, high = self.interval.get(name, (Fraction(0), Fraction(1)))
        if threshold >= high or threshold <= low:
            return threshold >= high
        answer = self.script[len(self.taken)] if len(self.taken) < len(self.script) else True
        self.taken += (answer,)
        self.interval[name] = (low, threshold) if answer else (threshold, high)
        return answer

    @property
    def weight(self) -> Fraction:
        """The probability of this path."""
        out = Fraction(1)
        for low, high in self.interval.values():
            out *= high - low
        return out


class Uniform:
    """A uniform on [0, 1) known only by the comparisons made with it, times a constant."""

    def __init__(self, path: Path, name: object, scale: Fraction | int = 1) -> None:
        self.path, self.name, self.scale = path, name, scale

    def __mul__(self, factor: Fraction | int) -> Uniform:
        return Uniform(self.path, self.name, self.scale * factor)

    __rmul__ = __mul__

    def __lt__(self, bound: Fraction | int) -> bool:
        return self.path.below(self.name, Fraction(bound) / self.scale) if self.scale else bound > 0

    def __le__(self, bound: Fraction | int) -> bool:
        return self < bound if self.scale else bound >= 0  # the border itself has no measure


def outcomes(run: Callable[[Path], Verdict]) -> Iterator[tuple[Fraction, Verdict]]:
    """Every result `run` can have over all uniforms, with its exact probability."""
    scripts: list[tuple[bool, ...]] = [()]
    while scripts:
        script = scripts.pop()
        path = Path(script)
        verdict = run(path)
        yield path.weight, verdict
        scripts += [(*path.taken[:i], False) for i in range(len(script), len(path.taken))]


# Random models


def random_law(rng: Random, size: int, zeros: bool = True) -> Law:
    """A law on `size` tokens; with `zeros`, some of them may be impossible."""
    while True:
        parts = [rng.randint(0 if zeros else 1, 6) for _ in range(size)]
        if sum(parts):
            return [Fraction(x, sum(parts)) for x in parts]


def random_model(rng: Random, size: int, zeros: bool = True) -> Model:
    """A model whose law depends on the whole prefix."""
    known: dict[Prefix, Law] = {}

    def law(prefix: Prefix) -> Law:
        if prefix not in known:
            known[prefix] = random_law(rng, size, zeros)
        return known[prefix]

    return law


def argmax(law: Law) -> int:
    return max(range(len(law)), key=lambda v: law[v])


# Drafters


def sampled(q: Model, stop: Callable[[Prefix], bool] = lambda prefix: False, report: Model | None = None) -> Drafter:
    """Draws each draft from q and reports `report` (q itself by default).

    `stop(prefix)` ends the draft before the next draw; it sees the drafts already submitted, never one it would drop.
    """

    def draft(k: int, prefix: Prefix = (), weight: Fraction = Fraction(1)) -> Iterator[tuple[Fraction, Prefix, list[Law] | None]]:
        if len(prefix) == k or stop(prefix):
            yield weight, prefix, [(report or q)(prefix[:i]) for i in range(len(prefix))]
            return
        for v, mass in enumerate(q(prefix)):
            if mass:
                yield from draft(k, (*prefix, v), weight * mass)

    return draft


def dropping(q: Model, floor: Fraction, reports: bool) -> Drafter:
    """Draws from q but drops a draft, and ends, where its own q is below `floor`: legal only if q is not reported."""

    def draft(k: int) -> Iterator[tuple[Fraction, Prefix, list[Law] | None]]:
        for weight, drafts, laws in sampled(q)(k):
            low = [i for i, x in enumerate(drafts) if laws[i][x] < floor]
            cut = low[0] if low else k
            yield weight, drafts[:cut], laws[:cut] if reports else None

    return draft


def greedy(q: Model, reports: bool = False) -> Drafter:
    """Drafts the argmax of q: a point mass, which `reports` then wrongly calls q."""

    def draft(k: int) -> Iterator[tuple[Fraction, Prefix, list[Law] | None]]:
        prefix: Prefix = ()
        while len(prefix) < k:
            prefix = (*prefix, argmax(q(prefix)))
        yield Fraction(1), prefix, [q(prefix[:i]) for i in range(k)] if reports else None

    return draft


def silent(drafter: Drafter) -> Drafter:
    """The same drafts with no law reported."""
    return lambda k: ((weight, drafts, None) for weight, drafts, _ in drafter(k))


# The laws


def match_rule(p: list[Law], drafts: Prefix, q: list[Law] | None, u: list, u_tail: object) -> Verdict:
    """Sample-and-match as a rule of the common form: the target's own sample at every row by the row's own uniform."""
    return verify_match([pick(law, v) for law, v in zip(p, [*u, u_tail], strict=True)], drafts)


RULES: dict[str, Rule] = {"token": verify_token, "block": verify_block, "match": match_rule}


def step_law(rule: Rule, p: Model, drafts: Prefix, q: list[Law] | None) -> Iterator[tuple[Fraction, Verdict]]:
    """The law of the verdict on given drafts."""
    rows = [p(drafts[:i]) for i in range(len(drafts) + 1)]
    return outcomes(lambda path: rule(rows, drafts, q, [Uniform(path, i) for i in range(len(drafts))], Uniform(path, "tail")))


def continued(p: Model, prefix: Prefix, length: int) -> Iterator[tuple[Fraction, Prefix]]:
    """The target's own continuations of a prefix up to `length` tokens."""
    if len(prefix) >= length:
        yield Fraction(1), prefix[:length]
        return
    for v, mass in enumerate(p(prefix)):
        if mass:
            for weight, rest in continued(p, (*prefix, v), length):
                yield mass * weight, rest


def target_law(p: Model, length: int) -> dict[Prefix, Fraction]:
    """The target's joint law of the next `length` tokens."""
    return {tokens: weight for weight, tokens in continued(p, (), length)}


def output_law(rule: Rule, p: Model, drafter: Drafter, k: int) -> dict[Prefix, Fraction]:
    """The joint law of the next k + 1 tokens: one step by the rule, short outcomes continued by the target's own law."""
    emitted: Counter[Prefix] = Counter()
    for weight, drafts, q in drafter(k):
        for chance, verdict in step_law(rule, p, drafts, q):
            emitted[(*drafts[: verdict.accepted], verdict.tail)] += weight * chance
    law: Counter[Prefix] = Counter()
    for prefix, weight in emitted.items():
        for chance, tokens in continued(p, prefix, k + 1):
            law[tokens] += weight * chance
    return {tokens: weight for tokens, weight in law.items() if weight}


def mean_accepted(rule: Rule, p: Model, drafter: Drafter, k: int) -> Fraction:
    """Expected number of drafts kept in one step."""
    return sum(
        (weight * chance * verdict.accepted for weight, drafts, q in drafter(k) for chance, verdict in step_law(rule, p, drafts, q)),
        Fraction(0),
    )


def lossless(rule: Rule, p: Model, drafter: Drafter, k: int) -> bool:
    """Whether the output law is exactly the target's."""
    return output_law(rule, p, drafter, k) == target_law(p, k + 1)


SIZES = list(itertools.product((2, 3), (1, 2, 3)))  # (V, k)
