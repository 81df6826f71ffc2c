"""What a drafter is, and the base of every method that looks up its drafts.

A drafter proposes; it never touches committed tokens and never sees the uniforms that will judge its proposal. It may
be slow, wrong, short or crash: the engine then does a plain step.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headstart.core.types import Chunk, Proposal, Sequence
from headstart.runtime.runner import Runner


@dataclass(frozen=True)
class DraftContext:
    """What a method may need from the target to set itself up."""

    tokenizer: Any  # of the target; None when prompts are token ids only
    vocab: int  # real ids of the target
    dtype: torch.dtype
    device: torch.device
    max_rows: int  # rows of one pass
    target_parameters: int
    hf_token: str | None
    note: Callable[[str], None]  # a line for the user at start-up
    load_target: Callable[[str], Any] | None = None  # the target once more, with its weights quantised to that type
    target: Any = None  # the loaded target: its `config`, and `embed` of token ids


class Drafter:
    """Base of all methods. Invariant: state is about committed tokens only, so a step thrown away leaves no trace."""

    name: str = "drafter"  # its method; set by `draft.build`
    kv_bytes_per_token: int = 0  # of the KV it keeps in the shared blocks
    temperature: float | None = None  # of its own law; None: that of the request
    hidden_layers: tuple[int, ...] = ()  # of the target: it wants to `see` what enters these; their number is what leaves the last
    asks: bool = False  # whether it asks `pays`, so that it may be given room for more drafts than it is likely to make
    free: bool = False  # whether drafting takes next to no time, so that drafts may be made just to see whether they would stand
    prior: float = 0.7  # the chance of a draft to stand, before anything is known of it

    # Set by the engine: whether one more draft pays for a sequence, after those whose probabilities by the drafter's own law are
    # given. To be asked before a token is drawn: one that is drawn must be proposed.
    pays: Callable[[Sequence, Seq[float]], bool] | None = None

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Called once, when the number of blocks is known."""

    def attach(self, target: Runner) -> None:
        """Called when it begins to serve a target, before any request."""

    def serves(self, seq: Sequence) -> bool:
        """Whether it can draft for this sequence now, for all it knows before it tries."""
        return True

    def behind(self, seq: Sequence) -> int:
        """How many committed tokens it reads before its first draft for a sequence: many after a prompt or a pause."""
        return 0

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        """Up to `chunk.k` drafts for every chunk, in order; an empty Proposal where there is nothing to say."""
        raise NotImplementedError

    def text_model(self) -> Any:
        """The model whose logits over the target's ids are its law, where that law is a function of the text alone; else None.

        `headstart analyse` judges such a drafter at many positions in one pass, with nothing drafted.
        """
        return None

    def see(self, chunks: Seq[Chunk], states: Seq[Tensor]) -> None:
        """Called between the pass and its commit where `hidden_layers` names any: the states of every chunk's rows.

        states: for each chunk [count + drafts, len(hidden_layers) * hidden], of the positions from `seq.computed` on.
        """

    def observe(self, chunks: Seq[Chunk]) -> None:
        """Called after the commit of every step, with or without drafts."""

    def forget(self, seq: Sequence) -> None:
        """The sequence finished, was aborted, or lost its blocks to preemption."""


class LookupDrafter(Drafter):
    """A method that finds its drafts in text: implement `lookup`; the point-mass law comes from here."""

    free = True
    prior = 0.5  # what does not stand is found out at no cost

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        """Up to k tokens that may follow `seq.tokens`."""
        raise NotImplementedError

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        return [Proposal(self.lookup(c.seq, c.k)) if c.k > 0 else Proposal() for c in chunks]
