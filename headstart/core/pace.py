"""How many drafts pay: expected tokens over measured seconds, chosen anew for every sequence and step.

With a_i the chance that draft i stands after those before it stood, k drafts give E(k) = 1 + sum_j prod_{i<=j} a_i tokens
(Leviathan et al. 2211.17192, there for a constant a). A pass over m rows takes T(m) seconds, drafting D(k). The k that gives
most tokens per second wins, k = 0 among them: so a draft that does not pay is paused. It is probed again while all probes
together, what they take to catch up on the text included, stay within a small share of the time. Nothing here looks at the
tokens of a draft before its length is settled, so the law of the output is untouched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq

PRIOR = 0.7  # what a draft is worth before anything is known: hopeful, so that it gets a try
PRIOR_WEIGHT = 3.0
MEMORY = 0.97  # weight of the past per observed step: some thirty steps count
GAIN = 1.03  # drafts must promise this much more than a plain step, so that noise in the times does not decide
PROBES = 0.01  # the share of all time that may be spent on trying what is not expected to pay
SHORTEST_PAUSE = 8  # steps between two probes, however cheap


class WidthCurve:
    """Seconds of a pass by its rows, learned from the passes themselves.

    Two factors are tracked, the shape by width and one scale for all widths: when the machine as a whole gets slower or the
    context longer, widths that were not used lately are not mistaken for cheaper ones.
    """

    def __init__(self) -> None:
        self.shape: dict[int, float] = {}
        self.seen: dict[int, int] = {}
        self.scale = 1.0

    def observe(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows took so long."""
        if rows not in self.shape:
            self.shape[rows], self.seen[rows] = seconds / self.scale, 1
            return
        self.seen[rows] += 1
        ratio = min(max(seconds / (self.scale * self.shape[rows]), 0.25), 4.0)  # one hiccup must not count for many
        self.shape[rows] *= ratio ** (1 / self.seen[rows] if self.seen[rows] < 4 else 0.03)
        self.scale *= ratio**0.1

    @property
    def known(self) -> int:
        """How many widths were seen."""
        return len(self.shape)

    def __call__(self, rows: float) -> float:
        """Expected seconds at a width: linear between the seen ones, never falling, going on straight beyond the last."""
        widths = sorted(self.shape)
        times: list[float] = []
        for w in widths:
            times.append(max(self.shape[w], times[-1] if times else 0.0))
        at = bisect_left(widths, rows)
        if at == 0:
            return self.scale * times[0]
        if at == len(widths):
            if at == 1:
                return self.scale * times[0]
            slope = (times[-1] - times[0]) / (widths[-1] - widths[0])
            return self.scale * (times[-1] + slope * (rows - widths[-1]))
        part = (rows - widths[at - 1]) / (widths[at] - widths[at - 1])
        return self.scale * (times[at - 1] + part * (times[at] - times[at - 1]))


class Acceptance:
    """How often drafts stood, by position; the past fades."""

    def __init__(self) -> None:
        self.tried: list[float] = []
        self.stood: list[float] = []

    def observe(self, drafted: int, accepted: int) -> None:
        """Of `drafted` drafts the first `accepted` stood; those behind the first failure were not judged."""
        self.tried = [x * MEMORY for x in self.tried] + [0.0] * (drafted - len(self.tried))
        self.stood = [x * MEMORY for x in self.stood] + [0.0] * (drafted - len(self.stood))
        for i in range(min(drafted, accepted + 1)):
            self.tried[i] += 1
            self.stood[i] += i < accepted

    def rates(self, count: int, prior: Seq[float] | None = None) -> list[float]:
        """a_1 .. a_count. Without a prior, the mean over all positions, itself drawn to PRIOR."""
        if prior is None:
            mean = (sum(self.stood) + PRIOR_WEIGHT * PRIOR) / (sum(self.tried) + PRIOR_WEIGHT)
            prior = [mean] * count
        out = []
        for i in range(count):
            tried, stood = (self.tried[i], self.stood[i]) if i < len(self.tried) else (0.0, 0.0)
            out.append((stood + PRIOR_WEIGHT * prior[i]) / (tried + PRIOR_WEIGHT))
        return out


class _Runner:
    """What is remembered of one sequence."""

    def __init__(self, pool: Acceptance) -> None:
        self.acceptance, self.pool = Acceptance(), pool
        self.k = 0  # as chosen last
        self.shadow: list[int] = []  # drafts that no pass judges, compared with what comes
        self.shadow_at = 0


class Pace:
    """Chooses draft lengths. `free`: drafting takes no pass of a model, so drafts can be scored without being verified."""

    def __init__(self, free: bool = False) -> None:
        self.free = free
        self.curve = WidthCurve()
        self.draft_step = 0.0  # seconds per draft token of the longest draft in a batch
        self.pools: dict[str, Acceptance] = {}  # of all sequences of a kind: what is expected of a new one
        self.runners: dict[int, _Runner] = {}
        self.seconds = self.probing = 0.0  # of all decoding steps, and what probes took beyond plain steps
        self.since_probe = 0
        self.probed = False  # in this step: sequences that wait probe together, one wide pass for all
        self.drafting = 0.0  # seconds of this step

    def choose(self, seq_id: int, most: int, kind: str = "") -> int:
        """How many drafts this sequence should get now, 0..most. Sequences of one `kind` are expected to be alike."""
        own = self.runners.get(seq_id)
        if own is None:
            own = self.runners[seq_id] = _Runner(self.pools.setdefault(kind, Acceptance()))
        if most == 0:
            own.k = 0
        elif self.curve.known < 2:  # learn a plain pass first, then a wide one
            own.k = most if self.curve.known else 0
            self.probed = own.k > 0
        else:
            own.k = self._best(own, most)
        return own.k

    def _best(self, own: _Runner, most: int) -> int:
        """The length of most tokens per second, supposing that those who draft do as this one; 0 unless it pays."""
        drafting = sum(r.k > 0 for r in self.runners.values() if r is not own) + 1
        idle = len(self.runners) - drafting
        expected, stands, gains = 1.0, 1.0, []
        plain = (idle + drafting) / self.curve(idle + drafting)
        for k, a in enumerate(own.acceptance.rates(most, own.pool.rates(most)), start=1):
            stands *= a
            expected += stands
            seconds = self.curve(idle + drafting * (1 + k)) + self.draft_step * k
            gains.append((idle + drafting * expected) / seconds / plain)
        best = max(range(most), key=gains.__getitem__)
        if gains[best] > GAIN:
            return best + 1
        if self.free or self.since_probe < SHORTEST_PAUSE or self.probing > PROBES * self.seconds:
            return 0
        self.probed = True
        return best + 1

    def observe(self, seq_id: int, drafted: int, accepted: int) -> None:
        """What became of a sequence's drafts."""
        own = self.runners.get(seq_id)
        if drafted and own is not None:
            own.acceptance.observe(drafted, accepted)
            own.pool.observe(drafted, accepted)

    def pass_took(self, rows: int, sequences: int, seconds: float) -> None:
        """A pass in which every sequence decoded took so long, drafting apart. Ends the step."""
        plain = self.curve(sequences) if self.curve.known else seconds
        self.curve.observe(rows, seconds)
        self.seconds += seconds + self.drafting
        self.since_probe += 1
        if self.probed:
            self.probing += max(0.0, seconds + self.drafting - plain)
            self.since_probe, self.probed = 0, False
        self.drafting = 0.0

    def drafting_took(self, longest: int, seconds: float) -> None:
        """Drafting up to `longest` tokens per sequence took so long. Falls fast and rises slowly: some calls catch up on a text."""
        self.drafting = seconds
        if longest:
            each = seconds / longest
            rate = 1.0 if not self.draft_step else 0.5 if each < self.draft_step else 0.1
            self.draft_step += rate * (min(each, 4 * self.draft_step or each) - self.draft_step)

    def unwatched(self, seq_id: int) -> bool:
        """Whether no drafts of this sequence are being compared with what comes."""
        return seq_id in self.runners and not self.runners[seq_id].shadow

    def watch(self, seq_id: int, length: int, tokens: list[int]) -> None:
        """Drafts for a text of `length` tokens that no pass will judge: they are compared with what comes instead."""
        own = self.runners.get(seq_id)
        if own is not None and not own.shadow:
            own.shadow, own.shadow_at = tokens, length

    def compare(self, seq_id: int, text: Seq[int]) -> None:
        """The text as it stands now: settle watched drafts as soon as one failed or all stood."""
        own = self.runners.get(seq_id)
        if own is None or not own.shadow:
            return
        came = text[own.shadow_at :]
        stood = next((i for i, (a, b) in enumerate(zip(own.shadow, came, strict=False)) if a != b), min(len(own.shadow), len(came)))
        if stood < len(came) or stood == len(own.shadow):
            own_drafts, own.shadow = len(own.shadow), []
            self.observe(seq_id, own_drafts, stood)

    def forget(self, seq_id: int) -> None:
        """The sequence ended."""
        self.runners.pop(seq_id, None)
