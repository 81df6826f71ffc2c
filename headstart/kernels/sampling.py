"""From logits to a token in one call: the law and the race of ops/sampling.py and ops/noise.py, which define them, both at once, and the
judgement of drafts (ops/verify.py: judge).

A row's numbers are the same bits beside any other rows and on any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from ctypes import byref, c_double, c_int64
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from headstart.core.params import SamplingParams
from headstart.kernels.library import Active, Choice, Filters, Logits, Race, Trial, Verdict, active


def fits(rows: Tensor, dtype: torch.dtype) -> bool:
    """Whether a path can take these rows [..., V], which must be of `dtype`, on the CPU and each without gaps."""
    return rows.dtype is dtype and rows.is_cpu and rows.stride(-1) == 1 and rows.numel() > 0


def serving(rows: Tensor, dtype: torch.dtype) -> Active | None:
    """The path that takes these rows; None: torch does."""
    by = active()
    return by if by.handle is not None and fits(rows, dtype) else None


def law(by: Active, logits: Tensor, params: SamplingParams) -> Tensor:
    """Laws fp64 [R, V] of logits fp32 [R, V], for params that are not greedy; NaN for a row that has none."""
    out = torch.empty(logits.shape, dtype=torch.float64)
    rows = Logits(*logits.shape, logits.stride(0), logits.data_ptr())
    by.call("law", rows, _filters(params), out.data_ptr())
    return out


def race(by: Active, law: Tensor, key: int, names: Tensor | None) -> int:
    """The id of the least -log1p(-u) / law, u keyed by `key` and the id, on a law fp64 [V].

    names: the ids int64 [V] of its entries, or None for 0..V-1.
    """
    names = None if names is None else names.contiguous()
    winner = c_int64()
    by.call("race", Race(len(law), key, law.data_ptr(), None if names is None else names.data_ptr()), byref(winner))
    return winner.value


def choose(by: Active, asked: Iterable[tuple[Tensor, SamplingParams, Seq[int]]]) -> list[list[int]]:
    """Of each logits fp32 [R, V] the R tokens that their options and a key of the race for each row give; -1 where one is not finite."""
    choices: list[Choice] = []
    counts: list[int] = []
    for logits, params, keys in asked:
        filters, at, size, step = _filters(params), logits.data_ptr(), logits.shape[1], 4 * logits.stride(0)
        choices += (Choice(size, at + i * step, key, filters) for i, key in enumerate(keys))
        counts.append(len(keys))
    ids = (c_int64 * len(choices))()
    by.call("choose", (Choice * len(choices))(*choices), len(choices), ids)
    flat = iter(ids)
    return [list(islice(flat, count)) for count in counts]


class Drafted(NamedTuple):
    """k drafts of one sequence, and what they are judged by."""

    logits: Tensor  # fp32 [k + 1, V] of the target, row i before draft i is fed
    params: SamplingParams  # not greedy
    drafts: list[int]
    laws: Tensor  # fp64 [k, V]: what each was drawn from
    rule: str  # rejection or block
    accept: list[float]  # a uniform for each
    tail: float  # and for the token after them


def judge(by: Active, asked: Iterable[Drafted], checked: bool = False) -> list[tuple[int, int]]:
    """Of each how many drafts stand, and the token after them; -1 where a logit of the row that gives it is not finite.

    checked: every row is known to have a law, and -inf stands for what the options of the sequence forbid.
    """
    trials = [_trial(d, checked) for d in asked]
    verdicts = (Verdict * len(trials))()
    by.call("judge", (Trial * len(trials))(*trials), len(trials), verdicts)
    return [(v.accepted, v.tail) for v in verdicts]


def _trial(d: Drafted, checked: bool) -> Trial:
    k, strides, pointers = len(d.drafts), (d.logits.stride(0), d.laws.stride(0)), (d.logits.data_ptr(), d.laws.data_ptr())
    tokens, uniforms = (c_int64 * k)(*d.drafts), (c_double * (k + 1))(*d.accept, d.tail)
    return Trial(k, d.logits.shape[1], *strides, *pointers, tokens, uniforms, _filters(d.params), d.rule == "block", checked)


def _filters(params: SamplingParams) -> Filters:
    return Filters(0.0 if params.greedy else params.temperature, params.min_p, params.top_p, params.top_k)
