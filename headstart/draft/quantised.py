"""The target drafts for itself: its own weights in 8 or 4 bits, no training and no second download.

It reads the keys and values that the target has of the committed text, so there is nothing to prefill and no second cache. What
it writes while it drafts lies beyond that text; the pass that judges the drafts feeds the same tokens and overwrites it all.
"""

from __future__ import annotations

from headstart.core.errors import ModelError
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Sequence
from headstart.draft.base import DraftContext, Drafter
from headstart.draft.draft_model import ModelDrafter
from headstart.runtime.runner import Model, Runner


class QuantisedDrafter(ModelDrafter):
    """Invariant: what lies in the target's cache below `seq.computed` was written by the target."""

    def __init__(self, model: Model, vocab: int, max_len: int, max_rows: int, temperature: float | None) -> None:
        super().__init__(model, vocab, max_len, max_rows, temperature)
        self.kv_bytes_per_token = 0

    def attach(self, target: Runner) -> None:
        self.runner = Runner(self.model, 0, target.block_size, self.vocab, target.max_len)
        self.runner.cache, self.runner.local_blocks = target.cache, target.local_blocks
        self.max_len = target.max_len

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Nothing: the target's own cache will do."""

    def serves(self, seq: Sequence) -> bool:
        return seq.computed == len(seq.tokens) - 1  # the last token is all that the cache lacks; not so while a prompt is read

    # `text_model` is that of any draft model: for `headstart analyse` its own keys stand in for the target's, which differ by the rounding.

    def start(self, seq: Sequence) -> int:
        return seq.computed


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """Read the target's checkpoint once more. Raises ModelError."""
    if context.load_target is None:
        raise ModelError("method='quantised' needs the native engine: the target's weights are read once more from its checkpoint")
    assert spec.quantization is not None  # filled by SpeculativeConfig
    model = context.load_target(spec.quantization)
    context.note(f"draft: the target's weights in {spec.quantization}, {model.weight_bytes / 2**20:.0f} MiB")
    return QuantisedDrafter(model, context.vocab, model.config.max_len, context.max_rows, spec.draft_temperature)
