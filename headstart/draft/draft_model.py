"""A smaller model with the target's vocabulary drafts, sampling from its warped law and reporting it.

It shares the target's block tables and keeps KV tensors of its own. One number per sequence says how many committed
tokens its KV covers; what is missing is fed before drafting: one token normally, two after a full acceptance (it never
saw its own last draft nor the bonus), the whole text at first, after steps without drafts, and after preemption.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft import head
from headstart.draft.base import DraftContext, Drafter
from headstart.models.head import is_head
from headstart.ops.draw import draw
from headstart.ops.shaping import shape
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Model, Runner
from headstart.runtime.tokenizer import first_difference, load_tokenizer

_ADVICE = "use a draft with the target's tokenizer, or method='ngram'"


class ModelDrafter(Drafter):
    """Invariant: between steps, the draft's KV of a sequence holds exactly its first `covered[seq.id]` committed tokens."""

    def __init__(self, model: Model, vocab: int, max_len: int, max_rows: int, temperature: float | None) -> None:
        self.model, self.vocab, self.max_len, self.max_rows, self.temperature = model, vocab, max_len, max_rows, temperature
        self.kv_bytes_per_token = model.kv_bytes_per_token
        self.covered: dict[int, int] = {}

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.runner = Runner(self.model, num_blocks, block_size, self.vocab, self.max_len)

    def serves(self, seq: Sequence) -> bool:
        return len(seq.tokens) <= self.max_len  # the draft's own context

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        proposals = [Proposal() for _ in chunks]
        # Nothing is drafted beyond the draft's own context.
        room = {c.seq.id: min(c.k, self.max_len - len(c.seq.tokens) + 1) for c in chunks}
        active = [(c, p) for c, p in zip(chunks, proposals, strict=True) if room[c.seq.id] > 0]
        laws: dict[int, list[Tensor]] = {}
        fresh = self._catch_up([c.seq for c, _ in active]) if active else []
        step = 0
        while active:
            for (chunk, proposal), logits in zip(active, fresh, strict=True):
                token, q = draw(shape(logits, chunk.seq, proposal.tokens), chunk.seq, len(proposal.tokens), self.temperature)
                proposal.tokens.append(token)
                if q is not None:
                    laws.setdefault(chunk.seq.id, []).append(q)
            step += 1
            active = [(c, p) for c, p in active if room[c.seq.id] > step]
            if active:
                feeds = [Feed(p.tokens[-1:], len(c.seq.tokens) + step - 1, c.seq.table, 1) for c, p in active]
                fresh = self.runner.forward(feeds)
                for c, _ in active:
                    self.covered[c.seq.id] = len(c.seq.tokens) + step
        for chunk, proposal in zip(chunks, proposals, strict=True):
            if chunk.seq.id in laws:
                proposal.probs = torch.cat(laws[chunk.seq.id])
        return proposals

    def _catch_up(self, seqs: Seq[Sequence]) -> list[Tensor]:
        """Feed every committed token the draft's KV lacks, in passes of at most `max_rows`; the last logits of each."""
        last: dict[int, Tensor] = {}
        while len(last) < len(seqs):
            rows, feeds, fed = self.max_rows, [], []
            for seq in seqs:
                if seq.id in last or rows == 0:
                    continue
                start = self.covered.get(seq.id, 0)
                tokens = seq.tokens[start : start + rows]
                done = start + len(tokens) == len(seq.tokens)
                feeds.append(Feed(tokens, start, seq.table, int(done)))
                fed.append((seq, start + len(tokens), done))
                rows -= len(tokens)
            for (seq, covered, done), logits in zip(fed, self.runner.forward(feeds), strict=True):
                self.covered[seq.id] = covered
                if done:
                    last[seq.id] = logits
        return [last[seq.id] for seq in seqs]

    def score(self, tokens: Seq[int], start: int, table: Seq[int], rows: int) -> Tensor:
        return self.runner.forward([Feed(tokens, start, table, rows)])[0]

    def observe(self, chunks: Seq[Chunk]) -> None:
        # What was fed beyond the committed tokens were rejected drafts. Done every step: later the lengths would lie.
        for chunk in chunks:
            if chunk.seq.id in self.covered:
                self.covered[chunk.seq.id] = min(self.covered[chunk.seq.id], len(chunk.seq.tokens) - 1)

    def forget(self, seq: Sequence) -> None:
        self.covered.pop(seq.id, None)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """Load the draft and check that its ids mean what the target's mean. Raises ModelError."""
    assert spec.model is not None
    checkpoint = open_checkpoint(spec.model, spec.revision, context.hf_token)
    if is_head(checkpoint.config):
        return head.build(spec, context)
    for line in checkpoint.notes:
        context.note(f"draft {line}")
    rows = checkpoint.config.get("vocab_size", 0)
    if context.tokenizer is not None:
        difference = first_difference(context.tokenizer, load_tokenizer(checkpoint))
        if difference:
            raise ModelError(
                f"draft {spec.model!r} has another vocabulary: {difference}; use a draft with the target's tokenizer, or ngram"
            )
    if rows < context.vocab:
        raise ModelError(
            f"draft {spec.model!r} has {rows} vocabulary rows, the target {context.vocab} ids: use a draft with the target's tokenizer"
        )
    model = load_model(checkpoint, context.dtype, context.device, spec.quantization)
    if model.parameters > context.target_parameters:
        context.note(f"warning: the draft has {model.parameters:,} weights, the target {context.target_parameters:,}: are they swapped?")
    max_len = min(model.config.max_len, spec.max_model_len or model.config.max_len)
    return ModelDrafter(model, context.vocab, max_len, context.max_rows, spec.draft_temperature)
