"""What the target computes on the texts: the hidden states a head reads, the mass of its whole vocabulary, and its likeliest token.

The law at a position is head(norm(last state)) minus `lse`, so the last tap serves as input and as teacher. Runs the engine's own
pass, so a quantised target teaches what it will serve. One file for every few texts; what is there is not made again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.distill.data import Text
from headstart.runtime.runner import Feed

if TYPE_CHECKING:
    from headstart.engine.step import Engine

_PER_FILE = 32
_LARGEST = 60000.0  # what half precision holds; beyond it states are kept in single


@dataclass(frozen=True)
class Example:
    """A text with the target's states [n, taps * hidden], the log of the mass of its logits [n] and the id of the largest [n]."""

    tokens: Tensor  # [n] int64
    start: int  # tokens from here on were written by the target
    states: Tensor
    lse: Tensor  # fp32
    likeliest: Tensor  # int64


def extract(engine: Engine, texts: Sequence[Text], taps: tuple[int, ...], folder: Path, say: Callable[[str], None]) -> list[Example]:
    """Run the target over the texts, or read what is there. Raises ModelError when files are damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    out: list[Example] = []
    table = list(range(-(-engine.target.max_len // engine.target.block_size)))
    for at in range(0, len(texts), _PER_FILE):
        some = texts[at : at + _PER_FILE]
        path = folder / f"{_name(some, taps)}.safetensors"
        if not path.exists():
            _compute(engine, some, taps, table, path)
            say(f"states: {at + len(some):,} of {len(texts):,} texts")
        out += _read(path, some)
    return out


def _name(texts: Sequence[Text], taps: tuple[int, ...]) -> str:
    """Of a file: which texts, and which layers."""
    return hashlib.sha256(repr(([t.number for t in texts], taps)).encode()).hexdigest()[:16]


def _compute(engine: Engine, texts: Sequence[Text], taps: tuple[int, ...], table: list[int], path: Path) -> None:
    """One text at a time (several in a pass are hardly faster), in blocks that no request holds: between requests they are all free."""
    tensors: dict[str, Tensor] = {}
    for text in texts:
        feed = Feed(text.tokens, 0, table[: -(-len(text.tokens) // engine.target.block_size)], len(text.tokens))
        logits, states = engine.target.forward_with_states([feed], taps)
        small = bool(states[0].abs().max() < _LARGEST)
        tensors[f"{text.number}.states"] = states[0].to(torch.float16 if small else torch.float32).clone()
        tensors[f"{text.number}.lse"] = torch.logsumexp(logits[0].float(), -1).clone()
        tensors[f"{text.number}.likeliest"] = logits[0].argmax(-1)
    part = path.with_suffix(".part")
    save_file(tensors, part)
    os.replace(part, path)


def _read(path: Path, texts: Sequence[Text]) -> list[Example]:
    try:
        with safe_open(path, framework="pt") as f:
            kept = lambda text: (f.get_tensor(f"{text.number}.{what}") for what in ("states", "lse", "likeliest"))  # noqa: E731
            return [Example(torch.tensor(t.tokens), t.start, *kept(t)) for t in texts]
    except (SafetensorError, OSError) as e:
        raise ModelError(f"{path} is damaged ({e}): delete it, it is then made again") from None


@dataclass(frozen=True)
class Batch:
    """Texts side by side, padded at the end; positions beyond a text have weight 0."""

    tokens: Tensor  # [B, n] int64
    states: Tensor  # [B, n, taps * hidden] fp32
    lse: Tensor  # [B, n]
    likeliest: Tensor  # [B, n] int64
    weight: Tensor  # [B, n]: of the token there; each text sums to 1


def collate(examples: Sequence[Example]) -> Batch:
    """Pad and stack. A text counts as one, however long it is: else long ones would decide everything."""
    n = max(len(e.tokens) for e in examples)
    pad = lambda x: torch.cat((x, x.new_zeros(n - len(x), *x.shape[1:])))  # noqa: E731
    weights = []
    for e in examples:
        w = torch.zeros(n)
        w[e.start : len(e.tokens)] = 1 / max(1, len(e.tokens) - e.start)
        weights.append(w)
    return Batch(
        torch.stack([pad(e.tokens) for e in examples]),
        torch.stack([pad(e.states) for e in examples]).float(),
        torch.stack([pad(e.lse) for e in examples]),
        torch.stack([pad(e.likeliest) for e in examples]),
        torch.stack(weights),
    )
