"""Runner: owns one model and its cache, and turns what sequences feed into one pass. No policy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from headstart.ops.attention import Batch, KVCache, Layout, Numbers, Span, slot_range


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


class Tapped(Protocol):
    """A model that shows its hidden states, for drafters that read them."""

    def forward_with_states(self, batch: Batch, cache: KVCache, taps: Seq[int]) -> tuple[Tensor, Tensor]: ...


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
    local: Seq[int] = ()  # the table of layers with a window, where the runner has blocks of their own for them


def lay_out(feeds: Seq[Feed], block_size: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """What sequences feed, as one pass through layers that see all keys."""
    tokens, positions, wanted = array("q"), array("q"), array("q")
    for f in feeds:
        tokens.extend(f.tokens)
        positions.extend(range(f.start, f.start + len(f.tokens)))
        wanted.extend(range(len(tokens) - f.logits, len(tokens)))
    places, spans = _places(feeds, [f.table for f in feeds], [f.first for f in feeds], block_size, dtype, device)
    return Batch(places, spans, device, ids=tokens, at=positions, wanted=wanted)


def _places(
    feeds: Seq[Feed],
    tables: Seq[Seq[int]],
    firsts: Seq[int],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
) -> tuple[Numbers, list[Span]]:
    """The slots that new keys go to, and where those lie that each feed may see, from its first position on."""
    new = array("q")
    spans: list[Span] = []
    row = 0
    for f, table, first in zip(feeds, tables, firsts, strict=True):
        rows, stop = len(f.tokens), f.start + len(f.tokens)
        keys = slot_range(table, block_size, first, stop)
        new.extend(range(keys.stop - rows, keys.stop) if isinstance(keys, slice) else keys[f.start - first :])
        spans.append(Span(slice(row, row + rows), stop - first, keys, dtype, device, window))
        row += rows
    return new, spans


class Runner:
    """One model, its KV for every block of the pool, and the number of real ids of the vocabulary.

    local_blocks: how many blocks sliding layers have of their own; None: they use those of the other layers.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int, vocab: int, max_len: int, local_blocks: int | None = None) -> None:
        self.model, self.block_size, self.vocab, self.max_len = model, block_size, vocab, max_len
        self.local_blocks = local_blocks
        self.cache = model.new_cache(num_blocks * block_size, None if local_blocks is None else local_blocks * block_size)

    def forward(self, feeds: Seq[Feed]) -> list[Tensor]:
        """One pass. Returns for each feed the logits fp32 or wider [feed.logits, vocab] of its last rows.

        Rows of padding in the vocabulary are cut off here, so they can be neither proposed nor emitted.
        """
        return self._per_feed(self.model.forward(self._batch(feeds), self.cache), feeds)

    def forward_with_states(self, feeds: Seq[Feed], layers: Seq[int]) -> tuple[list[Tensor], list[Tensor]]:
        """`forward`, and for each feed the hidden states [rows, len(layers) * hidden] that enter these layers."""
        logits, states = cast(Tapped, self.model).forward_with_states(self._batch(feeds), self.cache, layers)
        return self._per_feed(logits, feeds), list(states.split([len(f.tokens) for f in feeds]))

    def _batch(self, feeds: Seq[Feed]) -> Batch:
        size, dtype, device = self.block_size, self.model.dtype, self.model.device
        batch = lay_out(feeds, size, dtype, device)
        if (window := self.model.window) is not None:
            tables = [self._local(f) for f in feeds]
            firsts = [max(0, f.start - window + 1) for f in feeds]
            batch.local = Layout(*_places(feeds, tables, firsts, size, dtype, device, window), device)
        return batch

    def _local(self, feed: Feed) -> Seq[int]:
        """Its table of layers with a window. One without (a trial while nothing else runs) goes round and round their blocks."""
        if self.local_blocks is None:
            return feed.table
        return feed.local or [block % self.local_blocks for block in feed.table]

    def _per_feed(self, logits: Tensor, feeds: Seq[Feed]) -> list[Tensor]:
        if logits.shape[1] > self.vocab:
            logits = logits[:, : self.vocab]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return [logits] if len(feeds) == 1 else list(logits.split([f.logits for f in feeds]))
