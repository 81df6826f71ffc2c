"""No drafts: plain decoding."""

from __future__ import annotations

from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Sequence
from headstart.draft.base import DraftContext, Drafter, LookupDrafter


class NoDrafter(LookupDrafter):
    def lookup(self, seq: Sequence, k: int) -> list[int]:
        return []


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    return NoDrafter()
