"""Which tokens a draft head can say: those that the target writes most, and those no text does without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headstart.distill.data import Text


def choose(texts: Sequence[Text], tokenizer: Any, eos: Sequence[int], vocab: int, size: int) -> Tensor:
    """Ids [min(size, vocab)], ascending: those that the target wrote most often; of equals the lower ids, which merge earlier.

    The ends of turns, digits, line breaks and the special tokens of the template are always among them.
    """
    counts = torch.zeros(vocab)
    for text in texts:
        counts += torch.bincount(torch.tensor(text.tokens[text.start :]), minlength=vocab)
    counts -= torch.arange(vocab) / (2 * vocab)
    for token in (*eos, *(t for s in ("\n", "\n\n", " ", *"0123456789") for t in tokenizer(s, add_special_tokens=False).input_ids)):
        counts[token] += counts.max() + 1
    return counts.topk(min(size, vocab)).indices.sort().values


def coverage(texts: Sequence[Text], ids: Tensor) -> float:
    """The share of what the target wrote in these texts that the ids can say."""
    kept = set(ids.tolist())
    written = [t for text in texts for t in text.tokens[text.start :]]
    return sum(t in kept for t in written) / max(1, len(written))
