"""Lookup in the request's own text: the longest suffix that occurred before, its most recent occurrence, what followed.

Also known as prompt lookup decoding. One index per request, never shared: proposals must not carry another user's text.
"""

from __future__ import annotations

from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Sequence
from headstart.draft.base import DraftContext, Drafter, LookupDrafter


class _Index:
    """For each n-gram seen, the position after its most recent occurrence. Covers occurrences that have a continuation."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.after: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self.done = 0  # n-grams that end before this position are in

    def extend(self, tokens: list[int]) -> None:
        """Take in the tokens that came since the last call: constant work per token."""
        for end in range(max(self.done, 1), len(tokens)):
            for n, table in self.after.items():
                if n <= end:
                    table[tuple(tokens[end - n : end])] = end
        self.done = len(tokens)

    def find(self, tokens: list[int]) -> int | None:
        """Where the continuation of the longest known suffix starts."""
        for n, table in self.after.items():
            if n < len(tokens) and (at := table.get(tuple(tokens[-n:]))) is not None:
                return at
        return None


class NgramDrafter(LookupDrafter):
    """Invariant: an index holds committed tokens only, so nothing needs undoing after a rejection."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self.indexes: dict[int, _Index] = {}

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        index = self.indexes.setdefault(seq.id, _Index(self.shortest, self.longest))
        index.extend(seq.tokens)
        start = index.find(seq.tokens)
        if start is None:
            return []
        period = len(seq.tokens) - start  # a continuation that runs into the end goes on periodically
        return [seq.tokens[start + i % period] for i in range(k)]

    def forget(self, seq: Sequence) -> None:
        self.indexes.pop(seq.id, None)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    assert spec.prompt_lookup_min and spec.prompt_lookup_max  # filled by SpeculativeConfig
    return NgramDrafter(spec.prompt_lookup_min, spec.prompt_lookup_max)
