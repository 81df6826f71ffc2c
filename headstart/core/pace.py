"""Whose drafts pay, and how many: expected tokens over measured seconds, chosen anew for every sequence and step.

With a_i the chance that draft i stands after those before it stood, k drafts give E(k) = 1 + sum_j prod_{i<=j} a_i tokens
(Leviathan et al. 2211.17192, there for a constant a). A pass over m rows takes T(m) seconds, drafting D(k). The k that gives
most tokens per second wins, among all k of all drafters and k = 0: so a draft that does not pay is paused.

Drafts that are found without a model are all made in every step, and compared with the text that comes whether or not a pass
judged them: what each lookup would have given is known in full. A model is known by what it drafted; one that is not chosen is
probed again while all probes together, what they take to catch up on the text included, stay within a small share of the time.
The choice knows how many drafts were found, never which: it looks at no token that a model drew, so the law is untouched.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from headstart.core.estimates import PRIOR, Acceptance, Trust, WidthCurve

GAIN = 1.03  # drafts must promise this much more than a plain step, so that noise in the times does not decide
PROBES = 0.01  # the share of all time that may be spent on trying what is not expected to pay
NEGLIGIBLE = 0.02  # drafts that stand this seldom, with all before them, are not worth thinking about
SPARSE = 8  # sequences from which on those that draft nothing look for drafts every other step, and so on
SHORTEST_PAUSE = 8  # steps between two probes, however cheap


class Offer(NamedTuple):
    """What one drafter could do for a sequence now: up to `most` drafts, `found` already or still to be drawn by a model."""

    drafter: str
    most: int
    found: bool = False
    prior: float = PRIOR
    asks: bool = False  # whether each further draft is asked for (`goes_on`), so that room for more of them costs nothing

    @property
    def kind(self) -> tuple[str, int]:
        """Offers of a kind are expected to fare alike: a lookup finds more where it found a longer match."""
        return self.drafter, (self.most - 1).bit_length() if self.found else -1


@dataclass
class _Watched:
    """Found drafts for a text of `length` tokens, to be compared with what comes; the first `stood` have come."""

    kind: tuple[str, int]
    length: int
    tokens: list[int]
    stood: int = 0


class _Runner:
    """What is remembered of one sequence."""

    def __init__(self) -> None:
        self.acceptance: dict[tuple[str, int], Acceptance] = {}
        self.watched: dict[str, _Watched] = {}  # by drafter
        self.k = 0  # as chosen last


class Pace:
    """Chooses drafters and draft lengths."""

    def __init__(self) -> None:
        self.curve = WidthCurve()
        self.draft_steps: dict[str, float] = {}  # seconds per draft token of the longest draft in a batch, by model
        self.pools: dict[tuple[str, int], Acceptance] = {}  # of all sequences, by kind of offer: what is expected of a new one
        self.runners: dict[int, _Runner] = {}
        self.active = 0  # of them draft
        self.seconds = self.probing = 0.0  # of all decoding steps, and what probes took beyond plain steps
        self.trust: dict[str, Trust] = {}  # how far the probabilities of a model can be relied on
        self.rests: dict[str, int] = {}  # steps since each model drafted
        # Of this step:
        self.drawing: set[str] = set()  # models that draft
        self.probed = False  # sequences that wait probe together, one wide pass for all
        self.drafting = 0.0  # seconds

    def choose(self, seq_id: int, offers: Seq[Offer], adaptive: bool = True) -> tuple[int, int]:
        """(which offer, how many drafts of it) a sequence should take now; no drafts where none pay.

        Not adaptive: always as many as are offered, and only whose is chosen.
        """
        own = self.runners.get(seq_id)
        if own is None:
            own = self.runners[seq_id] = _Runner()
        for offer in offers:
            if not offer.found:
                self.rests.setdefault(offer.drafter, 0)
        which, k = self._choice(own, offers, adaptive) if offers else (0, 0)
        self.active += (k > 0) - (own.k > 0)
        own.k = k
        if k and not offers[which].found:
            self.drawing.add(offers[which].drafter)
        return which, k

    def _choice(self, own: _Runner, offers: Seq[Offer], adaptive: bool) -> tuple[int, int]:
        if not adaptive and len(offers) == 1:
            return 0, offers[0].most
        if adaptive and self.curve.known < 2:  # learn a plain pass first, then a wide one
            self.probed = self.curve.known > 0
            return 0, offers[0].most * self.probed
        gains = [self._best(own, offer, adaptive) for offer in offers]
        which = max(range(len(offers)), key=lambda i: gains[i][0])
        gain, k = gains[which]
        if adaptive and gain <= GAIN:
            k = 0
        elif offers[which].asks:
            k = offers[which].most
        for i, offer in enumerate(offers):
            if not offer.found and not (i == which and k) and self._may_probe(offer.drafter):
                self.probed = True
                return i, gains[i][1]
        return which, k

    def _may_probe(self, drafter: str) -> bool:
        return self.rests[drafter] >= SHORTEST_PAUSE and self.probing <= PROBES * self.seconds

    def _best(self, own: _Runner, offer: Offer, adaptive: bool) -> tuple[float, int]:
        """(tokens per second over those of a plain step, length) at the best length, supposing that those who draft do as this one."""
        drafting = self.active - (own.k > 0) + 1
        idle = len(self.runners) - drafting
        curve = self.curve if self.curve.known else lambda rows: 1.0
        each = 0.0 if offer.found else self.draft_steps.get(offer.drafter, 0.0)
        plain = (idle + drafting) / curve(idle + drafting)
        expected, stands, best = 1.0, 1.0, (0.0, 1)
        for k, a in enumerate(self._rates(own, offer), start=1):
            stands *= a
            expected += stands
            if adaptive and stands < NEGLIGIBLE:
                break
            if adaptive or k == offer.most:
                gain = (idle + drafting * expected) / (curve(idle + drafting * (1 + k)) + each * k) / plain
                best = max(best, (gain, k))
        return best

    def _rates(self, own: _Runner, offer: Offer) -> list[float]:
        pool, mine = self.pools.get(offer.kind), own.acceptance.get(offer.kind)
        rates = (pool or _NOTHING).rates(offer.most, offer.prior)
        return rates if mine is None else mine.rates(offer.most, rates)

    def observe(self, seq_id: int, drafter: str, drafted: int, accepted: int, odds: Seq[float] = (), stopped: bool = False) -> None:
        """What became of the drafts that a model made for a sequence.

        odds: its own probability of each, if it says. stopped: it made fewer than there was room for, so that the next one did not
        stand either: what a step with this model is worth counts what it leaves out.
        """
        own = self.runners.get(seq_id)
        if not drafted or own is None:
            return
        for acceptance in self._both(own, Offer(drafter, drafted).kind):
            acceptance.observe(drafted, accepted)
            if stopped and accepted == drafted:
                acceptance.judged(drafted, False)
        trust = self.trust.setdefault(drafter, Trust())
        for i, p in enumerate(odds[: accepted + 1]):
            trust.observe(p, i < accepted)

    def goes_on(self, seq_id: int, drafter: str, odds: Seq[float]) -> bool:
        """Whether one more draft of a model raises tokens per second, after those whose own probabilities are `odds`."""
        own = self.runners.get(seq_id)
        if own is None or self.curve.known < 2 or not odds:
            return True
        drafting = max(self.active, 1)
        idle, trust = len(self.runners) - drafting, self.trust.setdefault(drafter, Trust())
        each, k = self.draft_steps.get(drafter, 0.0), len(odds)
        expected = stands = 1.0
        for p in odds:
            stands *= trust(p)
            expected += stands
        now = (idle + drafting * expected) / (self.curve(idle + drafting * (1 + k)) + each * k)
        following = (trust(odds[-1]) + trust.mean) / 2  # nobody knows: between the last one and any
        more = drafting * stands * following
        return more > now * (self.curve(idle + drafting * (2 + k)) - self.curve(idle + drafting * (1 + k)) + each)

    def _both(self, own: _Runner, kind: tuple[str, int]) -> tuple[Acceptance, Acceptance]:
        """What is known of a kind of offer, for this sequence and for all."""
        return own.acceptance.setdefault(kind, Acceptance()), self.pools.setdefault(kind, Acceptance())

    def pass_took(self, rows: int, sequences: int, seconds: float) -> None:
        """A pass in which every sequence decoded took so long, drafting apart."""
        if self.probed:
            plain = self.curve(sequences) if self.curve.known else seconds
            self.probing += max(0.0, seconds + self.drafting - plain)
        self.curve.observe(rows, seconds)
        self.seconds += seconds + self.drafting
        for drafter in self.rests:
            self.rests[drafter] = 0 if drafter in self.drawing else self.rests[drafter] + 1

    def end_step(self) -> None:
        """Forget what was of this step only."""
        self.drawing.clear()
        self.probed, self.drafting = False, 0.0

    def drafting_took(self, drafter: str, longest: int, seconds: float, behind: bool = False) -> None:
        """A model took so long for up to `longest` drafts per sequence. Falls fast and rises slowly, since machines stutter.

        behind: it read text that it had missed first. Then a draft takes less than this: were it believed, a model that is paused,
        which is behind whenever it is tried, would seem dear and stay paused.
        """
        self.drafting += seconds
        each, known = seconds / max(longest, 1), self.draft_steps.get(drafter, 0.0)
        if longest and not (behind and each >= known):
            rate = 1.0 if not known else 0.5 if each < known else 0.1
            self.draft_steps[drafter] = known + rate * (min(each, 4 * known or each) - known)

    def looks(self, seq_id: int, length: int) -> bool:
        """Whether a sequence should look for drafts at this length of its text.

        One that took none of them lately only looks to learn whether it should: in a large batch, where many do, now and then.
        """
        own = self.runners.get(seq_id)
        return own is None or own.k > 0 or (length + seq_id) % (1 + len(self.runners) // SPARSE) == 0

    def watch(self, seq_id: int, offer: Offer, length: int, tokens: list[int]) -> None:
        """Drafts that were found for a text of `length` tokens, whoever serves the step: they are compared with what comes.

        A drafter has one set of them at a time, so that what is learned is what it would give by itself: it would draft
        again when a draft had failed or all had stood.
        """
        own = self.runners.get(seq_id)
        if own is not None and offer.drafter not in own.watched:
            own.watched[offer.drafter] = _Watched(offer.kind, length, tokens)

    def compare(self, seq_id: int, text: Seq[int]) -> None:
        """The text as it stands now: judge watched drafts; those of which one failed or all stood are done with."""
        own = self.runners.get(seq_id)
        if own is None:
            return
        for drafter, watched in list(own.watched.items()):
            both = self._both(own, watched.kind)
            for draft, token in zip(watched.tokens[watched.stood :], text[watched.length + watched.stood :], strict=False):
                for acceptance in both:
                    acceptance.judged(watched.stood, draft == token)
                if draft != token or watched.stood + 1 == len(watched.tokens):
                    del own.watched[drafter]
                    for acceptance in both:
                        acceptance.fade()
                    break
                watched.stood += 1

    def forget(self, seq_id: int) -> None:
        """The sequence ended."""
        own = self.runners.pop(seq_id, None)
        self.active -= own is not None and own.k > 0


_NOTHING = Acceptance()
