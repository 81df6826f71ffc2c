"""A feature-level head drafts from the hidden states of the target's own pass, one token after the other, and reports its law.

It shares the target's block tables and keeps keys and values of its own. Its entry at position p is made of the target's state
at p and the token at p + 1. Drafts go on from the head's own states; what they wrote is written anew, from the target's
states, before the next draft. A sequence whose beginning came from the prefix cache has no states there: the head then sees
the text from where the target's own passes began.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft.base import DraftContext, Drafter
from headstart.models.head import is_head, read_head_config
from headstart.ops.attention import Batch, KVCache
from headstart.ops.draw import draw_within, sureness
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_head
from headstart.runtime.runner import Feed, lay_out

# States kept for later, per sequence: while nothing is drafted the head need not run, but memory must not grow with the text.
_KEPT_ROWS = 512


class HeadModel(Protocol):
    """What the drafter needs of a head; `models.head.Head` and the tests' doubles have it."""

    taps: tuple[int, ...]
    ids: Tensor  # [N] int64: the target's ids that the logits stand for
    dtype: torch.dtype
    device: torch.device

    def new_cache(self, slots: int) -> KVCache: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    def fuse(self, states: Tensor) -> Tensor: ...

    def forward(self, batch: Batch, states: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]: ...


@dataclass
class _Known:
    """One sequence. Its KV holds positions first..covered-1; `states` are those of positions covered..end-1, waiting."""

    first: int
    covered: int
    end: int
    states: list[Tensor] = field(default_factory=list)

    def take(self, count: int) -> Tensor:
        """The first `count` waiting states, which are then covered."""
        rows = self.states[0] if len(self.states) == 1 else torch.cat(self.states)
        self.states = [rows[count:]] if count < len(rows) else []
        self.covered += count
        return rows[:count]


class HeadDrafter(Drafter):
    """Invariant: between steps, what is known of a sequence is about committed tokens only, in adjacent positions."""

    asks = True

    def __init__(self, model: HeadModel, vocab: int, max_len: int, max_rows: int, temperature: float | None) -> None:
        self.model, self.vocab, self.max_len, self.max_rows, self.temperature = model, vocab, max_len, max_rows, temperature
        self.kv_bytes_per_token, self.hidden_layers = model.kv_bytes_per_token, model.taps
        self.known: dict[int, _Known] = {}

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.cache = self.model.new_cache(num_blocks * block_size)

    def see(self, chunks: Seq[Chunk], states: Seq[Tensor]) -> None:
        for chunk, rows in zip(chunks, states, strict=True):
            at = chunk.seq.computed
            known = self.known.get(chunk.seq.id)
            if known is None or known.end != at:
                known = self.known[chunk.seq.id] = _Known(at, at, at)
            known.states.append(rows)

    def observe(self, chunks: Seq[Chunk]) -> None:
        # By now `computed` says which of the rows seen in this step were of committed tokens.
        for chunk in chunks:
            seq, known = chunk.seq, self.known.get(chunk.seq.id)
            if known is None or not known.states:
                continue
            known.states[-1] = known.states[-1][: seq.computed - known.end].clone()
            known.end = seq.computed
            waiting = known.end - known.covered
            if waiting > _KEPT_ROWS:
                self._run([(seq, waiting - 1)])

    def forget(self, seq: Sequence) -> None:
        self.known.pop(seq.id, None)

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        proposals = [Proposal() for _ in chunks]
        active = [(c, p) for c, p in zip(chunks, proposals, strict=True) if c.k > 0 and self._ready(c)]
        laws: dict[int, list[Tensor]] = {}
        fresh = self._catch_up([c.seq for c, _ in active]) if active else []
        step = 0
        while active:
            going = []
            for (chunk, proposal), (logits, state) in zip(active, fresh, strict=True):
                seq = chunk.seq
                drawn = draw_within(logits, self.model.ids, self.vocab, seq, proposal.tokens, self.temperature)
                if drawn is None:
                    continue
                token, q = drawn
                proposal.tokens.append(token)
                if q is not None:
                    laws.setdefault(seq.id, []).append(q)
                if self.pays is not None:
                    proposal.odds = [*proposal.odds, sureness(logits, q)]
                if chunk.k > step + 1 and (self.pays is None or self.pays(seq, proposal.odds)):
                    going.append((chunk, proposal, state))
            step += 1
            active = [(c, p) for c, p, _ in going]
            if active:
                feeds = [self._feed(c.seq, p.tokens[-1:], len(c.seq.tokens) - 2 + step, logits=1) for c, p in active]
                fresh = self._forward(feeds, torch.cat([state for _, _, state in going]))
        for chunk, proposal in zip(chunks, proposals, strict=True):
            if chunk.seq.id in laws:
                proposal.probs = torch.cat(laws[chunk.seq.id])
        return proposals

    def serves(self, seq: Sequence) -> bool:
        """Whether all but the last token have states, so that the head can go on from there."""
        known = self.known.get(seq.id)
        return known is not None and known.covered < known.end == len(seq.tokens) - 1 == seq.computed

    def behind(self, seq: Sequence) -> int:
        known = self.known.get(seq.id)
        return 0 if known is None else known.end - known.covered

    def _ready(self, chunk: Chunk) -> bool:
        """The same, and within its own context."""
        return self.serves(chunk.seq) and len(chunk.seq.tokens) + chunk.k - 2 <= self.max_len

    def _catch_up(self, seqs: Seq[Sequence]) -> list[tuple[Tensor, Tensor]]:
        """Feed every waiting state; the last logits and state of each sequence."""
        todo = [(seq, self.known[seq.id].end - self.known[seq.id].covered) for seq in seqs]
        out: list[tuple[Tensor, Tensor]] = []
        while todo:
            group, rows = [todo.pop(0)], 0
            rows = group[0][1]
            while todo and rows + todo[0][1] <= self.max_rows:
                group.append(todo.pop(0))
                rows += group[-1][1]
            out += self._run(group)
        return out

    def _run(self, group: Seq[tuple[Sequence, int]]) -> list[tuple[Tensor, Tensor]]:
        """Feed so many waiting states of each sequence in one pass."""
        feeds, states = [], []
        for seq, count in group:
            at = self.known[seq.id].covered
            feeds.append(self._feed(seq, seq.tokens[at + 1 : at + 1 + count], at, logits=1))
            states.append(self.known[seq.id].take(count))
        with torch.inference_mode():
            return self._forward(feeds, self.model.fuse(torch.cat(states)))

    def _feed(self, seq: Sequence, tokens: Seq[int], start: int, logits: int) -> Feed:
        return Feed(tokens, start, seq.table, logits, self.known[seq.id].first)

    @torch.inference_mode()
    def _forward(self, feeds: Seq[Feed], states: Tensor) -> list[tuple[Tensor, Tensor]]:
        logits, after = forward(self.model, feeds, states, self.cache, self.block_size)
        return list(zip(logits.split(1), after.split(1), strict=True))


def forward(model: HeadModel, feeds: Seq[Feed], states: Tensor, cache: KVCache, block_size: int) -> tuple[Tensor, Tensor]:
    """One pass of a head: logits fp32 or wider [L, its tokens] and the states [L, hidden] handed on, of the rows that `feeds` want.

    states: what it reads at each row [R, hidden].
    """
    logits, after = model.forward(lay_out(feeds, block_size, model.dtype, model.device), states, cache)
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits, after


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """Load the head and check that it belongs to this target. Raises ModelError."""
    assert spec.model is not None
    checkpoint = open_checkpoint(spec.model, spec.revision, context.hf_token)
    if not is_head(checkpoint.config):
        raise ModelError(f"draft {spec.model!r} is no head but a model of its own: leave method='head' out")
    if not hasattr(context.target, "embed"):
        raise ModelError(
            "a draft head reads the target's inner states, which a target on transformers' code does not show: use ngram or a draft model"
        )
    target = context.target.config
    config = read_head_config(checkpoint.config, target.layers)
    if (config.target_hidden, config.layer.vocab_size) != (target.hidden, target.vocab_size):
        raise ModelError(
            f"head {spec.model!r} is for a target with hidden size {config.target_hidden} and {config.layer.vocab_size} vocabulary rows, "
            f"this one has {target.hidden} and {target.vocab_size}: use the head of this target"
        )
    head = load_head(checkpoint, config, context.target.embed, context.vocab, context.dtype, context.device, spec.quantization)
    max_len = min(config.layer.max_len, spec.max_model_len or config.layer.max_len)
    return HeadDrafter(head, context.vocab, max_len, context.max_rows, spec.draft_temperature)
