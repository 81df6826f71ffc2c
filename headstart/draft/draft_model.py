"""A smaller model drafts, sampling from its warped law and reporting it. Its vocabulary is the target's, or is translated.

It shares the target's block tables and keeps KV tensors of its own. One number per sequence says how many committed
tokens its KV covers; what is missing is fed before drafting: one token normally, two after a full acceptance (it never
saw its own last draft nor the bonus), the whole text at first, after steps without drafts, and after preemption.

It reads ahead: what the text suggests its next drafts will be is fed together with the draft before (a cascade, Chen et al.
2312.11462). It draws at each row as it would have without; where a guess was right, it has saved itself a pass.

It may stop by itself where one more draft would not pay, as far as its probabilities of those it drew tell. It asks before it
draws the next one: a draft that is drawn is proposed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft import head
from headstart.draft.base import DraftContext, Drafter
from headstart.draft.suffix import SuffixDrafter
from headstart.models.head import is_head
from headstart.ops.draw import draw, sureness
from headstart.ops.shaping import shape
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model
from headstart.runtime.runner import Feed, Model, Runner
from headstart.runtime.tokenizer import first_difference, load_tokenizer

# A pass of so few rows takes hardly longer than one of a single row (docs/kernels.md); larger batches guess less, or nothing.
_ROWS = 4
_INDEXED = 128  # tokens of the text in a step: beside a drafter `suffix`, which has an index of its own, both stay below 5 ms
_LEAST = 0.3  # a guess followed at least this share of the places where the match was seen


@dataclass
class Draft:
    """A draft in the making, in the ids of the model: `drawn` after `text`, whose keys and values go through `table`."""

    seq: Sequence
    text: Seq[int]
    table: Seq[int]
    most: int
    drawn: list[int] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)  # of all of them or of none
    odds: list[float] = field(default_factory=list)  # how sure the model was of each
    guesses: list[int] = field(default_factory=list)  # of what comes next, which are being read already


class ModelDrafter(Drafter):
    """Invariant: between steps, the draft's KV of a sequence holds exactly its first `covered[seq.id]` committed tokens."""

    asks = True

    def __init__(self, model: Model, vocab: int, max_len: int, max_rows: int, temperature: float | None) -> None:
        self.model, self.vocab, self.max_len, self.max_rows, self.temperature = model, vocab, max_len, max_rows, temperature
        self.kv_bytes_per_token = model.kv_bytes_per_token
        self.covered: dict[int, int] = {}
        self.guide: SuffixDrafter | None = SuffixDrafter(1.0, _LEAST, share=_INDEXED)  # None: no guesses

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.runner = Runner(self.model, num_blocks, block_size, self.vocab, self.max_len)

    def serves(self, seq: Sequence) -> bool:
        return len(self.text(seq)) <= self.max_len  # the draft's own context

    def behind(self, seq: Sequence) -> int:
        return len(self.text(seq)) - self.start(seq)

    # What stands between a sequence and the model; another vocabulary, or another cache, is another answer to these.

    def text(self, seq: Sequence) -> Seq[int]:
        """The committed text in the ids of the model."""
        return seq.tokens

    def table(self, seq: Sequence, slots: int) -> Seq[int] | None:
        """Blocks for that many tokens of it; None if there are none."""
        return seq.table

    def start(self, seq: Sequence) -> int:
        """How many tokens of the text the model's KV covers."""
        return self.covered.get(seq.id, 0)

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        drafts = [self._begin(c) for c in chunks]
        active = [d for d in drafts if d is not None]
        fresh = self._catch_up(active) if active else []
        while active:
            active = [d for d, logits in zip(active, fresh, strict=True) if self._read(d, logits)]
            if active:
                fresh = self._feed_last(active)
        return [Proposal() if d is None or not d.drawn else self.proposal(d) for d in drafts]

    def proposal(self, draft: Draft) -> Proposal:
        """What the target is to judge."""
        return Proposal(draft.drawn, torch.cat(draft.laws) if draft.laws else None, odds=draft.odds)

    def _begin(self, chunk: Chunk) -> Draft | None:
        """Nothing is drafted beyond the draft's own context."""
        text = self.text(chunk.seq)
        most = min(chunk.k, self.max_len - len(text) + 1)
        table = self.table(chunk.seq, len(text) + most - 1) if most > 0 else None
        return None if table is None else Draft(chunk.seq, text, table, most)

    def _catch_up(self, drafts: Seq[Draft]) -> list[Tensor]:
        """Feed every committed token the draft's KV lacks, in passes of at most `max_rows`; the last logits of each."""
        last: dict[int, Tensor] = {}
        while len(last) < len(drafts):
            rows, feeds, fed = self.max_rows, [], []
            for d in drafts:
                if d.seq.id in last or rows == 0:
                    continue
                start = self.start(d.seq)
                tokens = d.text[start : start + rows]
                done = start + len(tokens) == len(d.text)
                d.guesses = self._guesses(d, len(drafts))[: rows - len(tokens)] if done else []
                feeds.append(self._feed(d, [*tokens, *d.guesses], start, done + len(d.guesses)))
                fed.append((d.seq.id, start + len(tokens), done))
                rows -= len(tokens) + len(d.guesses)
            for (ident, covered, done), logits in zip(fed, self.runner.forward(feeds), strict=True):
                self.covered[ident] = covered
                if done:
                    last[ident] = logits
        return [last[d.seq.id] for d in drafts]

    def _feed_last(self, drafts: Seq[Draft]) -> list[Tensor]:
        """Feed the last draft drawn of each, and what may follow it; the logits after each of them."""
        feeds = []
        for d in drafts:
            d.guesses = self._guesses(d, len(drafts))
            feeds.append(self._feed(d, [d.drawn[-1], *d.guesses], len(d.text) + len(d.drawn) - 1, 1 + len(d.guesses)))
        fresh = self.runner.forward(feeds)
        for d in drafts:
            self.covered[d.seq.id] = len(d.text) + len(d.drawn)
        return fresh

    @staticmethod
    def _feed(draft: Draft, tokens: Seq[int], start: int, logits: int) -> Feed:
        return Feed(tokens, start, draft.table, logits, local=draft.seq.local)

    def _guesses(self, draft: Draft, together: int) -> list[int]:
        """What may be drawn next, looked up in the text; `together` drafts share the pass."""
        most = min(_ROWS // together - 1, draft.most - len(draft.drawn) - 1)
        if most <= 0 or self.guide is None:
            return []
        match = self.guide.longest(draft.seq)
        if draft.drawn:
            match = self.guide.automata[draft.seq.id].walk(match, draft.drawn)
        return self.guide.after(draft.seq, match, most)

    def _read(self, draft: Draft, logits: Tensor) -> bool:
        """Draw from the logits [1 + guesses, V] as far as guesses are right; whether another draft is to follow."""
        for i, guess in enumerate([*draft.guesses, None]):
            if not self._goes_on(draft, logits[i : i + 1]):
                return False
            if draft.drawn[-1] != guess:
                break
            self.covered[draft.seq.id] += 1
        return True

    def _goes_on(self, draft: Draft, logits: Tensor) -> bool:
        """Draw one more; whether another one is to follow."""
        if not self.draw(draft, logits) or len(draft.drawn) == draft.most:
            return False
        return self.pays is None or self.pays(draft.seq, draft.odds)

    def draw(self, draft: Draft, logits: Tensor) -> bool:
        """Draw the next token from the logits [1, V] after those drawn before; False if there is none to draw."""
        logits = shape(logits, draft.seq, draft.drawn)
        token, q = draw(logits, draft.seq, len(draft.drawn), self.temperature)
        self.take(draft, token, q, logits)
        return True

    def take(self, draft: Draft, token: int, q: Tensor | None, logits: Tensor) -> None:
        """One more token of a draft, with the law it was drawn from."""
        draft.drawn.append(token)
        if q is not None:
            draft.laws.append(q)
        if self.pays is not None:
            draft.odds.append(sureness(logits, q))

    def text_model(self) -> Model | None:
        return self.model

    def observe(self, chunks: Seq[Chunk]) -> None:
        if self.guide is not None:
            self.guide.observe(chunks)
        # What was fed beyond the committed tokens were rejected drafts. Done every step: later the lengths would lie.
        for chunk in chunks:
            if chunk.seq.id in self.covered:
                self.covered[chunk.seq.id] = min(self.covered[chunk.seq.id], len(chunk.seq.tokens) - 1)

    def forget(self, seq: Sequence) -> None:
        self.covered.pop(seq.id, None)
        if self.guide is not None:
            self.guide.forget(seq)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """Load the draft; where its ids mean something else than the target's, they are translated. Raises ModelError."""
    assert spec.model is not None
    checkpoint = open_checkpoint(spec.model, spec.revision, context.hf_token)
    if is_head(checkpoint.config):
        return head.build(spec, context)
    for line in checkpoint.notes:
        context.note(f"draft {line}")
    rows = checkpoint.config.get("vocab_size", 0)
    own = load_tokenizer(checkpoint) if context.tokenizer is not None else None
    difference = None if own is None else first_difference(context.tokenizer, own)
    if difference and spec.use_heterogeneous_vocab is False:
        raise ModelError(
            f"draft {spec.model!r} has another vocabulary: {difference}; leave use_heterogeneous_vocab=False out to have it translated"
        )
    if not difference and rows < context.vocab:
        raise ModelError(
            f"draft {spec.model!r} has {rows} vocabulary rows, the target {context.vocab} ids: use a draft with the target's tokenizer"
        )
    model = load_model(checkpoint, context.dtype, context.device, spec.quantization)
    if model.parameters > context.target_parameters:
        context.note(f"warning: the draft has {model.parameters:,} weights, the target {context.target_parameters:,}: are they swapped?")
    max_len = min(model.config.max_len, spec.max_model_len or model.config.max_len)
    if difference:
        from headstart.draft.translated import translated

        context.note(f"draft {spec.model}: another vocabulary ({difference})")
        return translated(model, own, context, max_len, spec.draft_temperature)
    return ModelDrafter(model, context.vocab, max_len, context.max_rows, spec.draft_temperature)
