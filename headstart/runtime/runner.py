"""Runner: owns one model and its cache, and turns what sequences feed into one pass. No policy."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headstart.ops.attention import Batch, KVCache, Span, causal_mask, slot_range


class Model(Protocol):
    """What the runner needs of a model; `Decoder` and the tests' doubles have it."""

    dtype: torch.dtype
    device: torch.device

    def new_cache(self, slots: int) -> KVCache: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    def forward(self, batch: Batch, cache: KVCache) -> Tensor: ...


@dataclass
class Feed:
    """Tokens of one sequence at positions start.. that go through the model, and how many trailing rows need logits."""

    tokens: Seq[int]
    start: int
    table: Seq[int]
    logits: int = 0


class Runner:
    """One model, its KV for every block of the pool, and the number of real ids of the vocabulary."""

    def __init__(self, model: Model, num_blocks: int, block_size: int, vocab: int, max_len: int) -> None:
        self.model, self.block_size, self.vocab, self.max_len = model, block_size, vocab, max_len
        self.cache = model.new_cache(num_blocks * block_size)

    @torch.inference_mode()
    def forward(self, feeds: Seq[Feed]) -> list[Tensor]:
        """One pass. Returns for each feed the logits fp32 or wider [feed.logits, vocab] of its last rows.

        Rows of padding in the vocabulary are cut off here, so they can be neither proposed nor emitted.
        """
        model, size = self.model, self.block_size
        device = model.device
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[Tensor] = []
        spans: list[Span] = []
        wanted: list[int] = []
        for f in feeds:
            row, stop = len(tokens), f.start + len(f.tokens)
            tokens.extend(f.tokens)
            positions.extend(range(f.start, stop))
            keys = slot_range(f.table, size, 0, stop, device)
            new = torch.arange(keys.start + f.start, keys.stop, device=device) if isinstance(keys, slice) else keys[f.start :]
            slots.append(new)
            mask = causal_mask(len(f.tokens), stop, model.dtype, device)
            spans.append(Span(slice(row, len(tokens)), stop, keys, mask))
            wanted.extend(range(len(tokens) - f.logits, len(tokens)))
        batch = Batch(
            tokens=torch.tensor(tokens, device=device),
            positions=torch.tensor(positions, device=device),
            slots=slots[0] if len(slots) == 1 else torch.cat(slots),
            spans=spans,
            logit_rows=None if len(wanted) == len(tokens) else torch.tensor(wanted, dtype=torch.int64, device=device),
        )
        logits = model.forward(batch, self.cache)[:, : self.vocab]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return list(logits.split([f.logits for f in feeds]))
