"""Lookup in the user's own texts, through an index made by `headstart index build`, and in the request's own text.

Whichever matches longer drafts; of equals the request's own, which is nearer to what it is about. After REST (He et al. 2311.08252).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

from headstart.core.errors import ModelError
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import DraftContext, Drafter, LookupDrafter
from headstart.draft.suffix import SuffixDrafter
from headstart.lookup.corpus import Corpus
from headstart.runtime.tokenizer import fingerprint

_LONGEST = 16  # tokens of context looked for: longer matches give the same drafts
_SHORTEST = 2  # one token of millions says nothing


class CorpusDrafter(LookupDrafter):
    """Invariant: the corpus is read only; what is known of a request is in `own`."""

    def __init__(self, corpus: Corpus, own: SuffixDrafter) -> None:
        self.corpus, self.own = corpus, own

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        own = self.own.longest(seq)
        found = self.corpus.find(seq.tokens[-_LONGEST:], _LONGEST) if own.length < _LONGEST else None
        if found is None or found.length < max(_SHORTEST, own.length + 1):
            return self.own.after(seq, own, k)
        return self.corpus.draft(found, self.own.limit(found.length, k), self.own.least)

    def observe(self, chunks: Seq[Chunk]) -> None:
        self.own.observe(chunks)

    def forget(self, seq: Sequence) -> None:
        self.own.forget(seq)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """Open the index and check that its ids mean what the target's mean. Raises ModelError."""
    assert spec.corpus and spec.suffix_decoding_max_spec_factor is not None and spec.suffix_decoding_min_token_prob is not None
    corpus = Corpus(Path(spec.corpus).expanduser())
    made = corpus.manifest
    if context.tokenizer is not None and fingerprint(context.tokenizer) != made.fingerprint:
        raise ModelError(f"{spec.corpus} was made with the tokenizer of {made.tokenizer}, the target has another: build the index with it")
    if made.vocab > context.vocab:
        raise ModelError(f"{spec.corpus} has ids up to {made.vocab - 1}, the target {context.vocab}: build the index with its tokenizer")
    context.note(f"corpus: {made.tokens:,} tokens in {made.documents:,} documents")
    return CorpusDrafter(corpus, SuffixDrafter(spec.suffix_decoding_max_spec_factor, spec.suffix_decoding_min_token_prob))
