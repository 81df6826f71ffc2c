"""Lookup by the longest suffix of the request's own text that occurred before, of any length, and what followed it most often.

After SuffixDecoding (Oliaro et al. 2411.04975) and SAM-Decoding (Hu et al. 2411.10666), with one automaton per request: about
0.4 kB and 4 microseconds a token. How many drafts depends on how long the match is. Earlier outputs of other requests are looked into
only when the user shares them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import DraftContext, Drafter, LookupDrafter
from headstart.lookup.automaton import Match, SuffixAutomaton
from headstart.lookup.pool import Pool, Reader

# Tokens indexed in one step: two to four milliseconds. A prompt is indexed from its prefill on; what is left of it, or spared
# the prefill by the prefix cache, is caught up in the steps after, without drafts until then.
_CATCH_UP = 512


class SuffixDrafter(LookupDrafter):
    """Invariant: an automaton holds committed tokens only, so nothing needs undoing after a rejection."""

    def __init__(self, factor: float, least: float, pool: Pool | None = None, share: int = _CATCH_UP) -> None:
        """share: tokens indexed in one step."""
        self.factor, self.least, self.pool, self.share = factor, least, pool, share
        self.automata: dict[int, SuffixAutomaton] = {}
        self.readers: dict[int, Reader] = {}
        self.spare = share

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        own = self.longest(seq)
        if self.pool is not None:
            reader = self.readers.setdefault(seq.id, Reader(self.pool))
            reader.follow(seq.tokens)
            if reader.length > own.length:
                return reader.draft(self.limit(reader.length, k), self.least)
        return self.after(seq, own, k)

    def longest(self, seq: Sequence) -> Match:
        """The longest match in the sequence's own text; none while that is not indexed to its end."""
        automaton = self._learn(seq)
        return automaton.match if automaton.size == len(seq.tokens) else Match(0, 0)

    def after(self, seq: Sequence, match: Match, k: int) -> list[int]:
        """What follows a match in the sequence's own text, at most k tokens."""
        return self.automata[seq.id].draft(match.state, self.limit(match.length, k), self.least)

    def limit(self, length: int, k: int) -> int:
        """How many drafts a match of `length` tokens is worth, at most k."""
        return min(k, int(self.factor * length))

    def _learn(self, seq: Sequence) -> SuffixAutomaton:
        """Index what a sequence has gained, as far as this step's share goes."""
        automaton = self.automata.setdefault(seq.id, SuffixAutomaton())
        if automaton.size < len(seq.tokens):
            fresh = seq.tokens[automaton.size : automaton.size + self.spare]
            automaton.extend(fresh)
            self.spare -= len(fresh)
        return automaton

    def observe(self, chunks: Seq[Chunk]) -> None:
        self.spare = self.share  # the next step begins here
        for chunk in chunks:
            if chunk.seq.params.num_speculative_tokens != 0 and not chunk.seq.finished:
                self._learn(chunk.seq)

    def forget(self, seq: Sequence) -> None:
        self.automata.pop(seq.id, None)
        self.readers.pop(seq.id, None)
        if self.pool is not None and seq.finished:
            self.pool.add(seq.output)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    assert spec.suffix_decoding_max_spec_factor is not None and spec.suffix_decoding_min_token_prob is not None
    pool = Pool(spec.suffix_decoding_max_cached_requests or 0) if spec.shared else None
    return SuffixDrafter(spec.suffix_decoding_max_spec_factor, spec.suffix_decoding_min_token_prob, pool)
