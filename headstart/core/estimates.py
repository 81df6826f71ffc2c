"""What a run learns of itself: how long passes take by their rows, and how often drafts stand."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import accumulate

from headstart.core.theory import interpolate

PRIOR = 0.7  # what a draft is worth before anything is known: hopeful, so that it gets a try
PRIOR_WEIGHT = 3.0
MEMORY = 0.97  # weight of the past per observed step: some thirty steps count
_SETTLED = 3  # passes over a width that count as much as one another; later ones only correct what is known
_SLOW = 0.1


class WidthCurve:
    """Seconds of a pass by its rows, learned from the passes themselves.

    Two factors are tracked, the shape by width and one scale for all widths: when the machine as a whole gets slower or the
    context longer, widths that were not used lately are not mistaken for cheaper ones.
    """

    def __init__(self) -> None:
        self.shape: dict[int, float] = {}
        self.seen: dict[int, int] = {}
        self.scale = 1.0
        self._haste = _SLOW  # how far a pass moves the scale
        self._widths: list[int] = []  # empty until somebody asks after a pass
        self._times: list[float] = []  # of the widths, never falling, without the scale

    def expect(self, curve: Mapping[int, float]) -> None:
        """Start from a curve that was measured before, with no text and nothing but passes.

        It tells the shape; how long a step takes the first passes tell, which move the scale like a mean of them. Their share in
        the shape is that of any later pass: one that stumbles must not make other widths look cheap, or dear for good.
        """
        if curve:
            self.shape, self.seen, self._haste = dict(curve), dict.fromkeys(curve, _SETTLED), 1.0
            self._widths = []

    def observe(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows took so long."""
        if rows not in self.shape and self._haste > _SLOW:  # as yet the whole curve is only expected
            self.shape[rows], self.seen[rows] = self(rows) / self.scale, _SETTLED
        if rows not in self.shape:
            self.shape[rows], self.seen[rows] = seconds / self.scale, 1
        else:
            self.seen[rows] += 1
            ratio = min(max(seconds / (self.scale * self.shape[rows]), 0.25), 4.0)  # one hiccup must not count for many
            self.shape[rows] *= ratio ** (1 / self.seen[rows] if self.seen[rows] <= _SETTLED else 0.03)
            self.scale *= ratio**self._haste
            self._haste = max(_SLOW, self._haste / (1 + self._haste))  # 1, 1/2, 1/3, ...
        self._widths = []

    def _tabulate(self) -> None:
        """A point before the first width makes the curve flat there, one behind the last gives it the slope of the whole."""
        widths = sorted(self.shape)
        times = list(accumulate((self.shape[w] for w in widths), max))
        slope = (times[-1] - times[0]) / max(widths[-1] - widths[0], 1)
        self._widths, self._times = [0, *widths, widths[-1] + 1], [times[0], *times, times[-1] + slope]

    @property
    def known(self) -> int:
        """How many widths were seen or are expected."""
        return len(self.shape)

    def __call__(self, rows: float) -> float:
        """Expected seconds at a width: linear between the seen ones, never falling, going on straight beyond the last."""
        if not self._widths:
            self._tabulate()
        return self.scale * interpolate(self._widths, self._times, rows)


class Acceptance:
    """How often drafts stood, by position; the past fades."""

    def __init__(self) -> None:
        self.tried: list[float] = []
        self.stood: list[float] = []

    def observe(self, drafted: int, accepted: int) -> None:
        """Of `drafted` drafts the first `accepted` stood; those behind the first failure were not judged."""
        self.fade()
        for i in range(min(drafted, accepted + 1)):
            self.judged(i, i < accepted)

    def judged(self, position: int, stood: bool) -> None:
        """One draft stood or fell; all before it stood."""
        if position == len(self.tried):
            self.tried.append(0.0)
            self.stood.append(0.0)
        self.tried[position] += 1
        self.stood[position] += stood

    def fade(self) -> None:
        """Let the past count for less."""
        self.tried = [x * MEMORY for x in self.tried]
        self.stood = [x * MEMORY for x in self.stood]

    def rates(self, count: int, prior: float | Seq[float] = PRIOR) -> list[float]:
        """a_1 .. a_count, drawn to a prior: one for each, or one number, to which the mean over all positions is drawn first."""
        if isinstance(prior, float):
            mean = (sum(self.stood) + PRIOR_WEIGHT * prior) / (sum(self.tried) + PRIOR_WEIGHT)
            prior = [mean] * count
        out = []
        for i in range(count):
            tried, stood = (self.tried[i], self.stood[i]) if i < len(self.tried) else (0.0, 0.0)
            out.append((stood + PRIOR_WEIGHT * prior[i]) / (tried + PRIOR_WEIGHT))
        return out


class Trust:
    """How often a model's draft stands, by the probability that the model gave it; the past fades."""

    _BINS = 8

    def __init__(self) -> None:
        self.tried = [PRIOR_WEIGHT] * self._BINS
        self.stood = [PRIOR_WEIGHT * (i + 0.5) / self._BINS for i in range(self._BINS)]  # at first it is taken at its word

    def _bin(self, p: float) -> int:
        return min(int(p * self._BINS), self._BINS - 1)

    def observe(self, p: float, stood: bool) -> None:
        """A draft of probability p, those before it having stood."""
        i = self._bin(p)
        self.tried[i] = self.tried[i] * MEMORY + 1
        self.stood[i] = self.stood[i] * MEMORY + stood

    def __call__(self, p: float) -> float:
        """The chance that a draft of probability p stands."""
        return self.stood[self._bin(p)] / self.tried[self._bin(p)]

    @property
    def mean(self) -> float:
        """The chance of any draft, of which nothing is known."""
        return sum(self.stood) / sum(self.tried)
