"""Where a growing text stands in an expected one: it follows, and finds its place again after edits, insertions, deletions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_LONGEST = 8  # tokens of agreement beyond which two places are equally good and the nearer one wins
_CANDIDATES = 512  # places looked at, those nearest to where the text was


class Cursor:
    """Invariant: `expected[at]` is what should come next, and the last `agreed` tokens of the text are those before it.

    With `agreed` 0 that is a guess: the last token of the text is not expected anywhere, so it may stand for another.
    """

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected = expected
        self.at = self.agreed = 0
        self.read: int | None = None  # tokens of the text that were followed
        self._after: dict[int, list[int]] = {}  # token -> the places after it; made at the first disagreement

    @property
    def untouched(self) -> bool:
        """Whether the text has not begun yet."""
        return self.read is None

    def follow(self, text: Sequence[int], start: int) -> None:
        """Take in what `text`, which only grows, has gained; what it should be begins at `start`."""
        for i in range(start if self.read is None else self.read, len(text)):
            if self.at < len(self.expected) and text[i] == self.expected[self.at]:
                self.at += 1
                self.agreed += 1
            else:
                self._find(text, i + 1)
            self.read = i + 1

    def _find(self, text: Sequence[int], end: int) -> None:
        """The place after the longest agreement with the end of text[:end]; of equals the nearest, behind counting double."""
        if not self._after:
            for i, token in enumerate(self.expected):
                self._after.setdefault(token, []).append(i + 1)
        places = self._after.get(text[end - 1], [])
        middle = bisect_left(places, self.at)
        best = (0, 0)
        at = self.at
        for place in places[max(0, middle - _CANDIDATES) : middle + _CANDIDATES]:
            agreed = 1
            while agreed < min(_LONGEST, end, place) and text[end - 1 - agreed] == self.expected[place - 1 - agreed]:
                agreed += 1
            distance = place - self.at if place >= self.at else 2 * (self.at - place)
            if (agreed, -distance) > best:
                best, at = (agreed, -distance), place
        self.at, self.agreed = (at, best[0]) if best[0] else (min(self.at + 1, len(self.expected)), 0)

    def draft(self, limit: int) -> Sequence[int]:
        """Up to `limit` tokens that should come next."""
        return self.expected[self.at : self.at + limit]
