"""Runner: owns one model and its cache, and turns what sequences feed into one pass. No policy."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headstart.ops.attention import Batch, KVCache, Layout, Span, causal_mask, slot_range


class Model(Protocol):
    """What the runner needs of a model; `Decoder` and the tests' doubles have it."""

    dtype: torch.dtype
    device: torch.device

    def new_cache(self, slots: int, local_slots: int | None = None) -> KVCache: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def window(self) -> int | None: ...

    def forward(self, batch: Batch, cache: KVCache) -> Tensor: ...


@dataclass
class Feed:
    """Tokens of one sequence at positions start.. that go through the model, and how many trailing rows need logits."""

    tokens: Seq[int]
    start: int
    table: Seq[int]
    logits: int = 0
    local: Seq[int] = ()  # the table of sliding layers, where the runner has blocks of their own for them


class Runner:
    """One model, its KV for every block of the pool, and the number of real ids of the vocabulary.

    local_blocks: how many blocks sliding layers have of their own; None: they use those of the other layers.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int, vocab: int, max_len: int, local_blocks: int | None = None) -> None:
        self.model, self.block_size, self.vocab, self.max_len = model, block_size, vocab, max_len
        self.own_local = local_blocks is not None
        self.cache = model.new_cache(num_blocks * block_size, None if local_blocks is None else local_blocks * block_size)

    @torch.inference_mode()
    def forward(self, feeds: Seq[Feed]) -> list[Tensor]:
        """One pass. Returns for each feed the logits fp32 or wider [feed.logits, vocab] of its last rows.

        Rows of padding in the vocabulary are cut off here, so they can be neither proposed nor emitted.
        """
        model = self.model
        tokens = [t for f in feeds for t in f.tokens]
        positions = [p for f in feeds for p in range(f.start, f.start + len(f.tokens))]
        wanted: list[int] = []
        end = 0
        for f in feeds:
            end += len(f.tokens)
            wanted.extend(range(end - f.logits, end))
        everything = self._layout(feeds, None)
        batch = Batch(
            tokens=torch.tensor(tokens, device=model.device),
            positions=torch.tensor(positions, device=model.device),
            slots=everything.slots,
            spans=everything.spans,
            logit_rows=None if len(wanted) == len(tokens) else torch.tensor(wanted, dtype=torch.int64, device=model.device),
            local=None if model.window is None else self._layout(feeds, model.window),
        )
        logits = model.forward(batch, self.cache)[:, : self.vocab]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return list(logits.split([f.logits for f in feeds]))

    def _layout(self, feeds: Seq[Feed], window: int | None) -> Layout:
        """Where the keys of these feeds go, and where those lie that each may see: all of them, or a window's."""
        size, device = self.block_size, self.model.device
        slots: list[Tensor] = []
        spans: list[Span] = []
        row = 0
        for f in feeds:
            rows, stop = len(f.tokens), f.start + len(f.tokens)
            first = 0 if window is None else max(0, f.start - window + 1)
            table = f.local if window is not None and self.own_local else f.table
            keys = slot_range(table, size, first, stop, device)
            new = torch.arange(keys.stop - rows, keys.stop, device=device) if isinstance(keys, slice) else keys[f.start - first :]
            slots.append(new)
            mask = causal_mask(rows, stop - first, self.model.dtype, device, window)
            spans.append(Span(slice(row, row + rows), stop - first, keys, mask))
            row += rows
        return Layout(slots[0] if len(slots) == 1 else torch.cat(slots), spans)
