"""An online suffix automaton: all substrings of a growing text, with how often and where last each one occurred.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985): a token costs O(1) amortised and adds at
most two states. Knows token ids only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# How many suffixes learn of each occurrence, longest first. Natural text has a handful that occurred before; one token
# repeated for ever has as many as its length, and would cost the square of it.
_COUNTED = 32


class Match(NamedTuple):
    """The end of a text found earlier in it: the automaton's state for it, and its length in tokens (0 for none)."""

    state: int
    length: int


class SuffixAutomaton:
    """Invariant: state v stands for substrings of `length[link[v]] + 1` to `length[v]` tokens, each a suffix of the next, that
    occur at the same `count[v]` places, the latest of which ends before position `end[v]`.

    `next[v]` says which tokens follow and where they lead; `link[v]` is the state of the longest suffix that occurs elsewhere
    too. State 0 is the empty string, `last` the whole text.
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link, self.length, self.count, self.end = [-1], [0], [0], [0]
        self.last = 0
        self.size = 0  # tokens taken in

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text. One long function: it runs once per token of every prompt."""
        following, link, length, count, end = self.next, self.link, self.length, self.count, self.end
        last, size = self.last, self.size
        for token in tokens:
            size += 1
            new = len(link)
            following.append({})
            length.append(size)
            count.append(0)
            end.append(0)
            link.append(0)
            v, last = last, new
            while v >= 0 and token not in following[v]:
                following[v][token] = new
                v = link[v]
            if v >= 0:
                found = following[v][token]
                if length[found] != length[v] + 1:  # only its shorter strings end here too: part them from the longer ones
                    longer, found = found, new + 1
                    following.append(following[longer].copy())
                    length.append(length[v] + 1)
                    count.append(count[longer])
                    end.append(end[longer])
                    link.append(link[longer])
                    link[longer] = found
                    while v >= 0 and following[v].get(token) == longer:
                        following[v][token] = found
                        v = link[v]
                link[new] = found
            v = new
            for _ in range(_COUNTED):
                count[v] += 1
                end[v] = size
                v = link[v]
                if v <= 0:
                    break
        self.last, self.size = last, size

    @property
    def match(self) -> Match:
        """The longest suffix of the text that occurred before."""
        v = self.link[self.last]
        return Match(v, self.length[v]) if v > 0 else Match(0, 0)

    def walk(self, match: Match, tokens: Iterable[int]) -> Match:
        """The longest suffix that is found here once `tokens` have followed a match, amortised O(1) for each."""
        state, length = match
        for token in tokens:
            while state > 0 and token not in self.next[state]:
                state = self.link[state]
                length = self.length[state]
            if token in self.next[state]:
                state = self.next[state][token]
                length += 1
            else:
                length = 0
        return Match(state, length)

    def draft(self, state: int, limit: int, least: float = 0.0) -> list[int]:
        """Up to `limit` tokens after a state: at each the one that followed most often, of equals the one that did so last.

        Ends where that has followed in less than a share `least` of all occurrences of the state.
        """
        following, link, count, end = self.next, self.link, self.count, self.end
        out: list[int] = []
        share, v = 1.0, state
        while len(out) < limit:
            while v > 0 and not following[v]:  # the end of the text: it goes on as its longest repeated suffix does
                v = link[v]
            if v <= 0:
                break
            token, to = max(following[v].items(), key=lambda item: (count[item[1]], end[item[1]]))
            share *= min(1.0, count[to] / max(count[v] - (end[v] == self.size), 1))  # an occurrence at the end was not followed yet
            if share < least:
                break
            out.append(token)
            v = to
        return out
