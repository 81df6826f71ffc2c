"""The nouns of one step: what a sequence is, what is fed, what is proposed, what stands.

A `Sequence` holds committed tokens only. Drafts live in a `Proposal` for the length of one step and never enter
`tokens`, so rolling back is the assignment `seq.computed = len(seq.tokens) - 1`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headstart.core.params import SamplingParams


class Verdict(NamedTuple):
    """What verification decided for one sequence: `accepted` drafts stand and `tail` follows them.

    The tail is a correction after a rejection, a bonus after full acceptance, the ordinary next token when k = 0.
    A step emits accepted + 1 tokens.
    """

    accepted: int
    tail: int


@dataclass(eq=False)
class Sequence:
    """One completion being generated. Invariant: `tokens` are committed; the target's KV covers `tokens[:computed]`."""

    id: int
    request_id: str
    index: int  # which of the request's n completions
    params: SamplingParams
    tokens: list[int]  # prompt, then output
    prompt_len: int
    seed: int
    rule: str = "rejection"  # how drafts are verified: rejection, block or match
    eos_ids: tuple[int, ...] = ()
    max_len: int = 0  # context limit of the target, in tokens
    bad_words: tuple[tuple[int, ...], ...] = ()  # token ids of what must not be written
    grammar: Any = None  # ops/grammar.py: what may come next after the committed tokens; None when anything may
    score_prompt: bool = False  # whether its prompt rows are to be scored, so that all of them must run
    prediction: tuple[int, ...] = ()  # what the client expects the output to be
    computed: int = 0
    table: list[int] = field(default_factory=list)  # block ids, owned by core/blocks.py
    local: list[int] = field(default_factory=list)  # block ids of layers that see a window only, owned by core/window.py
    hashes: list[bytes] = field(default_factory=list)  # of the leading full blocks already offered for sharing
    salt: bytes = b""  # enters the hashes: the cache is shared among sequences of one salt only
    cached: int = 0  # prompt tokens whose KV came from the prefix cache at first admission
    preemptions: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def output(self) -> list[int]:
        """The generated tokens so far."""
        return self.tokens[self.prompt_len :]

    @property
    def produced(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """How many more tokens may be generated: the smaller of max_tokens and the context."""
        room = self.max_len - len(self.tokens)
        if self.params.max_tokens is None:
            return room
        return min(room, self.params.max_tokens - self.produced)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class Chunk:
    """What one sequence feeds in one pass: `count` committed tokens from `seq.computed` on, then up to `k` drafts.

    Prefill is a chunk that does not reach the last committed token and so samples nothing; plain decoding is k = 0.
    """

    seq: Sequence
    count: int
    k: int = 0

    @property
    def samples(self) -> bool:
        """Whether this chunk reaches the last committed token, so that its pass yields the next one."""
        return self.seq.computed + self.count == len(self.seq.tokens)


@dataclass
class Proposal:
    """Drafts for one chunk and the law they were drawn from.

    `probs` is None (judged as point masses, always lossless) or a [k, V] tensor whose row i is exactly the law token i
    was drawn from, including the decision to keep it. Any other law is a bias no counter shows.
    """

    tokens: list[int] = field(default_factory=list)
    probs: Any = None
    odds: Seq[float] = ()  # by the drafter's own law, one for each token; () when it does not say
    source: str = ""  # the name of the drafter; "grammar" for what the grammar of the request leaves no choice about
