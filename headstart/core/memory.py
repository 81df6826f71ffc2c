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
