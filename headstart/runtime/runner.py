"""Runner: owns one model and its cache, and turns what sequences feed into one pass. No policy."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, cast

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


class Tapped(Protocol):
    """A model that shows its hidden states, for drafters that read them."""

    def forward(self, batch: Batch, cache: KVCache, taps: dict[int, Tensor]) -> Tensor: ...


@dataclass
class Feed:
    """Tokens of one sequence at positions start.. that go through the model, and how many trailing rows need logits.

    first: the first position whose key is seen; what came before it was never written.
    """

    tokens: Seq[int]
    start: int
    table: Seq[int]
    logits: int = 0
    first: int = 0


def lay_out(feeds: Seq[Feed], block_size: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """What sequences feed, as one pass."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[Tensor] = []
    spans: list[Span] = []
    wanted: list[int] = []
    for f in feeds:
        row, stop = len(tokens), f.start + len(f.tokens)
        tokens.extend(f.tokens)
        positions.extend(range(f.start, stop))
        keys = slot_range(f.table, block_size, f.first, stop, device)
        before = f.start - f.first
        new = torch.arange(keys.start + before, keys.stop, device=device) if isinstance(keys, slice) else keys[before:]
        slots.append(new)
        mask = causal_mask(len(f.tokens), stop - f.first, dtype, device)
        spans.append(Span(slice(row, len(tokens)), stop - f.first, keys, mask))
        wanted.extend(range(len(tokens) - f.logits, len(tokens)))
    return Batch(
        tokens=torch.tensor(tokens, device=device),
        positions=torch.tensor(positions, device=device),
        slots=slots[0] if len(slots) == 1 else torch.cat(slots),
        spans=spans,
        logit_rows=None if len(wanted) == len(tokens) else torch.tensor(wanted, dtype=torch.int64, device=device),
    )


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
        return self._per_feed(self.model.forward(self._batch(feeds), self.cache), feeds)

    @torch.inference_mode()
    def forward_with_states(self, feeds: Seq[Feed], layers: Seq[int]) -> tuple[list[Tensor], list[Tensor]]:
        """`forward`, and for each feed the hidden states [rows, len(layers) * hidden] that enter these layers."""
        taps = dict.fromkeys(layers, torch.empty(0))
        logits = cast(Tapped, self.model).forward(self._batch(feeds), self.cache, taps)
        states = torch.cat([taps[i] for i in layers], -1).split([len(f.tokens) for f in feeds])
        return self._per_feed(logits, feeds), list(states)

    def _batch(self, feeds: Seq[Feed]) -> Batch:
        return lay_out(feeds, self.block_size, self.model.dtype, self.model.device)

    def _per_feed(self, logits: Tensor, feeds: Seq[Feed]) -> list[Tensor]:
        logits = logits[:, : self.vocab]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return list(logits.split([f.logits for f in feeds]))
