"""Predicted outputs: the answer that a client expects is a text to look in.

Stands beside every drafter, since any request may bring a prediction. The method `prediction` has nothing else.
"""

from __future__ import annotations

from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Sequence
from headstart.draft.base import DraftContext, Drafter, LookupDrafter
from headstart.draft.none import NoDrafter
from headstart.lookup.cursor import Cursor

_TRUST = 4  # drafts for each token by which text and prediction agree, which after an edit may be by accident; and for a guess


class PredictionDrafter(LookupDrafter):
    """Invariant: a cursor has followed committed tokens only, so nothing needs undoing after a rejection."""

    name = "prediction"
    prior = 0.9  # the client should know

    def __init__(self) -> None:
        self.cursors: dict[int, Cursor] = {}

    def serves(self, seq: Sequence) -> bool:
        return bool(seq.prediction)

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        if not seq.prediction:
            return []
        cursor = self.cursors.setdefault(seq.id, Cursor(seq.prediction))
        cursor.follow(seq.tokens, seq.prompt_len)
        limit = k if cursor.untouched else min(k, _TRUST * max(cursor.agreed, 1))
        return list(cursor.draft(limit))

    def forget(self, seq: Sequence) -> None:
        self.cursors.pop(seq.id, None)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    return NoDrafter()  # the engine has a PredictionDrafter beside any drafter
