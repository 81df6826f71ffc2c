"""A draft model with another tokenizer than the target's (Timor et al. 2502.05202).

Where the two vocabularies share most of what is written, token by token: the draft's law is restricted to the ids that both
have, and judged as any other law. Otherwise by text: what the draft writes is tokenised anew with the target's tokenizer, and
judged as a point mass. Both are exact: what the draft has read, and how well, only decides how much stands.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from headstart.core import rand
from headstart.core.blocks import BlockPool
from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft.base import DraftContext
from headstart.draft.draft_model import Draft, ModelDrafter
from headstart.ops.draw import draw_within
from headstart.ops.noise import pick
from headstart.ops.sampling import law
from headstart.runtime.runner import Model
from headstart.runtime.tokenizer import real_vocab
from headstart.runtime.translation import Translation

# Token by token from this share of common tokens in everyday text on: the target's mass outside cannot be drafted.
ENOUGH = 0.6
_LOOK_BEHIND = 10  # target tokens before the drafted text that are tokenised with it, as in transformers


class _Translated(ModelDrafter):
    """A model that reads and writes ids of its own. Invariant: `texts[seq.id]` is what it reads of the first `read` target tokens."""

    def __init__(self, model: Model, translation: Translation, vocab: int, max_len: int, max_rows: int, temperature: float | None) -> None:
        super().__init__(model, vocab, max_len, max_rows, temperature)
        self.guide = None  # its text is in other ids
        self.translation = translation
        self.texts: dict[int, list[int]] = {}
        self.read: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.drawn: dict[int, list[int]] = {}  # what was fed beyond the text in this step

    def allocate(self, num_blocks: int, block_size: int) -> None:
        super().allocate(num_blocks, block_size)
        self.pool = BlockPool(num_blocks, block_size, share=False)  # its texts have other lengths than the target's

    def text_model(self) -> Model | None:
        return None  # its ids are others

    def text(self, seq: Sequence) -> Seq[int]:
        if seq.id not in self.texts:
            self.texts[seq.id] = self.translation.prompt(seq.tokens[: seq.prompt_len])
            self.read[seq.id] = seq.prompt_len
        text = self.texts[seq.id]
        for token in seq.tokens[self.read[seq.id] :]:
            text += self.translation.spelled(token)
        self.read[seq.id] = len(seq.tokens)
        return text

    def table(self, seq: Sequence, slots: int) -> Seq[int] | None:
        table = self.tables.setdefault(seq.id, [])
        return table if len(self.texts[seq.id]) and self.pool.grow(table, slots) else None

    def start(self, seq: Sequence) -> int:
        return min(super().start(seq), len(self.texts[seq.id]) - 1)

    def observe(self, chunks: Seq[Chunk]) -> None:
        for chunk in chunks:
            ident = chunk.seq.id
            if ident in self.covered:
                before = len(self.texts[ident])
                came = self.text(chunk.seq)[before:]
                drawn = self.drawn.pop(ident, [])
                stood = next((i for i, (a, b) in enumerate(zip(drawn, came, strict=False)) if a != b), min(len(drawn), len(came)))
                self.covered[ident] = min(self.covered[ident], before + stood)

    def forget(self, seq: Sequence) -> None:
        super().forget(seq)
        self.texts.pop(seq.id, None)
        self.read.pop(seq.id, None)
        self.drawn.pop(seq.id, None)
        self.pool.trim(self.tables.pop(seq.id, []), 0)


class TokenDrafter(_Translated):
    """Drafts ids that both vocabularies have, and reports the law over the target's ids."""

    def __init__(self, *args: Any, target_vocab: int) -> None:
        super().__init__(*args)
        pairs = sorted(self.translation.same.items())
        self.target_vocab = target_vocab
        self.back = {own: theirs for theirs, own in pairs}
        self.target_ids, self.own_ids = (torch.tensor(side, device=self.model.device) for side in zip(*pairs, strict=True))

    def draw(self, draft: Draft, logits: Tensor) -> bool:
        shared = logits[:, self.own_ids]
        drawn = draw_within(shared, self.target_ids, self.target_vocab, draft.seq, self._said(draft), self.temperature)
        if drawn is None:
            return False
        self.take(draft, self.translation.same[drawn[0]], drawn[1], shared)
        return True

    def _said(self, draft: Draft) -> list[int]:
        return [self.back[i] for i in draft.drawn]

    def proposal(self, draft: Draft) -> Proposal:
        self.drawn[draft.seq.id] = draft.drawn
        return Proposal(self._said(draft), torch.cat(draft.laws) if draft.laws else None, odds=draft.odds)


class TextDrafter(_Translated):
    """Drafts text, which the target's tokenizer turns into drafts without a law."""

    def draw(self, draft: Draft, logits: Tensor) -> bool:
        token = int(logits[-1].argmax())
        if self.temperature:
            own = law(logits, SamplingParams(temperature=self.temperature))[0]
            token = pick(own, rand.uniform(draft.seq.seed, rand.DRAFT, len(draft.seq.tokens), len(draft.drawn)))
        self.take(draft, token, None, logits)
        return token in self.translation.theirs

    def proposal(self, draft: Draft) -> Proposal:
        self.drawn[draft.seq.id] = draft.drawn
        return Proposal(self.translation.said(draft.seq.tokens, draft.drawn, _LOOK_BEHIND)[: draft.most])


def translated(model: Any, tokenizer: Any, context: DraftContext, max_len: int, temperature: float | None) -> ModelDrafter:
    """The drafter of a model whose tokenizer is not the target's, and a line that says how it drafts."""
    own = real_vocab(tokenizer, model.config.vocab_size)
    translation = Translation(context.tokenizer, tokenizer, context.vocab, own)
    share = translation.shared()
    common = f"{100 * share:.0f} % of everyday text are tokens of both ({len(translation.same):,} ids)"
    given = (model, translation, own, max_len, context.max_rows, temperature)
    if share >= ENOUGH:
        context.note(f"draft vocabulary: {common}: it drafts those, token by token")
        return TokenDrafter(*given, target_vocab=context.vocab)
    context.note(f"draft vocabulary: {common}: it drafts text, greedily, which is tokenised anew for the target")
    return TextDrafter(*given)
