"""Finished outputs of many requests in one automaton, and readers that look for the text of theirs in it.

Bounded by generations: when the younger of two automata is full it becomes the older one, and what that held is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.lookup.automaton import Match, SuffixAutomaton

_TOKENS = 1 << 19  # in one generation: about 200 MB
_END = -1  # stands between two outputs, and is no token


class Pool:
    """Invariant: the last `limit` outputs can be found, or those of the last `_TOKENS` tokens; at most twice as many are kept."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.generations = [SuffixAutomaton(), SuffixAutomaton()]  # young, old

    def add(self, output: Sequence[int]) -> None:
        """Keep a finished output."""
        if self.held >= self.limit or self.generations[0].size + len(output) > _TOKENS:
            self.generations = [SuffixAutomaton(), self.generations[0]]
            self.held = 0
        self.generations[0].extend([*output, _END])
        self.held += 1


class Reader:
    """Follows one text through a pool. Invariant: for each generation, a state and the length of the longest suffix found there."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.read = 0
        self.places: list[tuple[SuffixAutomaton, Match]] = []  # in the young one and the old
        self.length = 0  # of the longest suffix found
        self.seen: tuple[object, ...] = ()

    def follow(self, text: Sequence[int]) -> None:
        """Take in what `text`, which only grows, has gained; its end once more when the pool has changed."""
        young, old = self.pool.generations
        if (young, young.size, old) != self.seen:
            self.seen = (young, young.size, old)
            self.places = [(young, Match(0, 0)), (old, Match(0, 0))]
            self.read = max(0, len(text) - _RECENT)
        self.places = [(a, a.walk(match, text[self.read :])) for a, match in self.places]
        self.read = len(text)
        self.length = max(match.length for _, match in self.places)

    def draft(self, limit: int, least: float) -> list[int]:
        """Up to `limit` tokens after the longest suffix found, in the younger generation if it is the same in both."""
        automaton, match = max(self.places, key=lambda place: place[1].length)
        drafts = automaton.draft(match.state, limit, least)
        return drafts[: drafts.index(_END)] if _END in drafts else drafts


_RECENT = 64  # tokens of a text that are looked for in a pool that has changed
