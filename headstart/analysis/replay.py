"""How many passes a drafter would have needed for a text that the target wrote, and of which width: exactly, without drafting.

Every rule emits the target's law, so a text y drawn from the target is what speculation might have emitted, and one may ask how it was
emitted. From a root t (the tokens before t stand), given y, at least j drafts were kept with probability

    rejection   prod_{i<=j} min(1, q_i(y_i) / p_i(y_i))        since keeping y_i has mass min(p, q) of p
    block       min_{i<=j} prod_{l<=i} q_l(y_l) / p_l(y_l)     since w_i Q_i / P_i is that running minimum, at most 1
    match       prod_{i<=j} g_i(y_i) / p_i(y_i)                g: both races choose y_i
    point mass  1 if y begins with the j drafts, else 0

whatever comes after. So the roots are a Markov chain along y, and what is expected of it is a sum, not a sample. That a draft at
position j was made after other drafts is accounted for: given that those stood, they are the text.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Passes:
    """What is expected for one text and draft length. `visits[t]`: how often a pass begins at root t; `drafts[t]`: its drafts.

    `kept[j]`: passes that kept at least j drafts, j = 0..k; `reached[j]`: of them, those that had made a further one, j = 0..k - 1.
    `first`: tokens of the pass at root 0, which ends the prompt.
    """

    visits: Array
    drafts: Array
    kept: Array
    reached: Array
    first: float

    @property
    def count(self) -> float:
        return float(self.visits.sum())


def windows(values: Array, longest: int, beyond: float = 0.0) -> Array:
    """[N, K]: the `longest` values [N] from each position on, of a law that is the same from whichever root it is asked."""
    padded = np.concatenate((values, np.full(longest, beyond)))
    return np.lib.stride_tricks.sliding_window_view(padded, longest)[: len(values)]


def chain(kept: Array) -> Array:
    """[N, K + 1]: chance that at least j drafts from root t stand, from `kept` [N, K], that of each to stand if those before it did
    (rejection, match); 0 beyond the end of the text."""
    return _from_root(np.multiply.accumulate(kept, axis=1))


def block_chain(ratios: Array) -> Array:
    """The same under block verification, from q(y) / p(y) [N, K]."""
    with np.errstate(over="ignore"):
        return _from_root(np.minimum.accumulate(np.minimum(np.multiply.accumulate(ratios, axis=1), 1), axis=1))


def _from_root(stands: Array) -> Array:
    """With a column before it: that no draft stands is no condition."""
    return np.concatenate((np.ones((len(stands), 1)), stands), axis=1)


def point_chain(drafts: Seq[Seq[int]], answer: Seq[int], longest: int) -> Array:
    """The same for drafts that are given: drafts[t] from root t."""
    out = np.zeros((len(answer), longest + 1))
    out[:, 0] = 1
    for t, tokens in enumerate(drafts):
        stood = 0
        while stood < len(tokens) and t + stood < len(answer) and tokens[stood] == answer[t + stood]:
            stood += 1
        out[t, 1 : stood + 1] = 1
    return out


def passes(stands: Array, lengths: Array, limit: int, k: int) -> Passes:
    """Follow the roots of a text. stands: [N, K + 1] as from `chain`; lengths: [N] drafts there are at each root; limit: tokens the text
    may have, which no step exceeds. A text that ends early ends the step it ends in."""
    count = len(lengths)
    room = np.maximum(limit - np.arange(count) - 1, 0)
    drafts = np.minimum(np.minimum(lengths, k), room)
    at_least = np.zeros((count, k + 2))
    reach = min(k + 1, stands.shape[1])
    at_least[:, :reach] = np.where(np.arange(reach) <= drafts[:, None], stands[:, :reach], 0.0)
    at_least[:, 0] = 1
    exactly = at_least[:, :-1] - at_least[:, 1:]  # [N, k + 1]
    visits = np.zeros(count + k + 2)
    visits[0] = 1
    for t in range(count):
        visits[t + 1 : t + k + 2] += visits[t] * exactly[t]
    visits = visits[:count]
    kept = visits[:, None] * at_least[:, : k + 1]
    # What lies behind the end of the text was not judged.
    judged = np.minimum(drafts, count - np.arange(count))[:, None] > np.arange(k)
    return Passes(visits, drafts, kept.sum(0), (kept[:, :-1] * judged).sum(0), min(1.0 + float(at_least[0, 1:].sum()), count))
