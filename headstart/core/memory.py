"""How much memory keys and values take: what sizes the engine's cache, and what `headstart plan` computes before there is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps: `numbers` for each token; of the last `window` tokens only, or of all where that is None."""

    numbers: int
    window: int | None = None


def grouped(kv_heads: int, head_dim: int) -> int:
    """Numbers a token and layer of grouped-query attention: a key and a value for each KV head (Ainslie et al. 2305.13245)."""
    return 2 * kv_heads * head_dim


def latent(rank: int, rope_dim: int) -> int:
    """Numbers a token and layer of latent attention: the compressed keys and values, and one rotated key (DeepSeek-V2, 2405.04434)."""
    return rank + rope_dim


def bytes_per_token(layers: Iterable[LayerCache], itemsize: float) -> float:
    """What one more token takes in all layers together, windows not yet full."""
    return sum(layer.numbers for layer in layers) * itemsize


def sequence_bytes(layers: Iterable[LayerCache], tokens: int, itemsize: float) -> float:
    """What a sequence of `tokens` takes when layers drop what left their window."""
    return sum(layer.numbers * min(tokens, layer.window or tokens) for layer in layers) * itemsize


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)


def pool_blocks(budget: float, per_token: float, block_size: int, max_len: int, sequences: int) -> int:
    """Blocks for a budget of bytes: what it holds, at most what `sequences` of `max_len` tokens could use."""
    return min(int(max(budget, 0) // (per_token * block_size)), blocks_of(max_len, block_size) * sequences)


@dataclass(frozen=True)
class Blocks:
    """How many blocks there are for layers that see all tokens, and for those that see a window; `local` is None where both share."""

    all: int
    local: int | None = None


def split_blocks(budget: float, kept: float, local: float, block_size: int, max_len: int, local_most: int, sequences: int) -> Blocks:
    """Blocks of two pools for a budget of bytes, in the proportion that sequences of `max_len` tokens need them.

    kept, local: bytes of a token in layers of each kind. local_most: blocks of the local pool that one sequence holds at most.
    """
    most = blocks_of(max_len, block_size)
    one = (most * kept + local_most * local) * block_size
    count = min(max(budget, 0) / one, sequences)
    if count >= 1:
        return Blocks(int(count * most), int(count * local_most))
    rest = budget - local_most * local * block_size  # one sequence, and not even of max_len tokens
    return Blocks(max(0, int(rest // (kept * block_size))) if kept else 0, local_most)
