"""Verification on tensors: the twin of `core/acceptance.py`, which takes the decision itself on the numbers gathered here.

Sequences of a batch are judged each by itself, and a row never sees its neighbours. Where the kernels serve they take a batch in one call
each: the tokens of rows that need no law, and drafts judged by their laws. What stands here is what that means.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from headstart.core import acceptance, rand
from headstart.core.params import SamplingParams
from headstart.core.types import Proposal, Sequence, Verdict
from headstart.kernels import sampling as kernels
from headstart.kernels.library import Active, active
from headstart.ops.noise import pick, race
from headstart.ops.sampling import law
from headstart.ops.shaping import ProcessorError, shape

NOT_FINITE = "the logits are not finite: the model or its dtype is at fault"

# What a step of one sequence brings: logits [k + 1, V] of the target, row i before draft i is fed, the k drafts, and whose they are.
Step = tuple[Tensor, Proposal, Sequence]


class Fault(ValueError):
    """A row has no law, so its sequence ends here: after `accepted` drafts, which stand."""

    def __init__(self, accepted: int, words: str) -> None:
        super().__init__(words)
        self.accepted = accepted


def verify_batch(steps: Seq[Step]) -> list[Verdict | Fault]:
    """`verify` of every step: its verdict, or the fault that it raises."""
    by = active()
    decided = {} if by.handle is None else {**_chosen(by, steps), **_judged(by, steps)}
    return [decided[i] if i in decided else _by_laws(*step) for i, step in enumerate(steps)]


def verify(logits: Tensor, proposal: Proposal, seq: Sequence) -> Verdict:
    """How many of k drafts stand, and the token after them.

    logits: [k + 1, V] of the target, row i before draft i is fed. The sequence brings its options, its rule, its seed and,
    by the number of its committed tokens, the key of the uniforms. Raises Fault where plain decoding would meet a row
    without a law; a row that only a rejected draft leads to harms nobody.
    """
    (verdict,) = verify_batch([(logits, proposal, seq)])
    if isinstance(verdict, Fault):
        raise verdict
    return verdict


def _chosen(by: Active, steps: Seq[Step]) -> dict[int, Verdict | Fault]:
    """By the number of a step what the kernels' choices of the target's own tokens say of it; of steps that these decide."""
    asked: dict[int, tuple[Tensor, SamplingParams, list[int]]] = {}
    for i, (logits, proposal, seq) in enumerate(steps):
        if not _samples(proposal, seq) or seq.params.shapes or not kernels.fits(logits, torch.float32):
            continue
        rows, start = len(proposal.tokens) + 1, len(seq.tokens)
        keys = [0] * rows if seq.params.greedy else [rand.key(seq.seed, rand.POSITION, start + j) for j in range(rows)]
        asked[i] = logits, seq.params, keys
    ids = kernels.choose(by, asked.values()) if asked else []
    return {i: _outcome(*acceptance.verify_match(own, steps[i][1].tokens)) for i, own in zip(asked, ids, strict=True)}


def _judged(by: Active, steps: Seq[Step]) -> dict[int, Verdict | Fault]:
    """By the number of a step the kernels' judgement of drafts by their laws; of steps whose logits need no shaping."""
    asked = {
        i: _drafted(*step)
        for i, step in enumerate(steps)
        if not _samples(*step[1:]) and not step[2].params.shapes and _fits(step[0], step[1].probs)
    }
    found = kernels.judge(by, asked.values()) if asked else []
    return {i: _outcome(*verdict) for i, verdict in zip(asked, found, strict=True)}


def _drafted(logits: Tensor, proposal: Proposal, seq: Sequence) -> kernels.Drafted:
    drafts, seed, length = proposal.tokens, seq.seed, len(seq.tokens)
    accept = [rand.uniform(seed, rand.ACCEPT, length, i) for i in range(len(drafts))]
    return kernels.Drafted(logits, seq.params, drafts, proposal.probs, seq.rule, accept, rand.uniform(seed, rand.TAIL, length))


def _fits(logits: Tensor, q: Tensor) -> bool:
    return kernels.fits(logits, torch.float32) and kernels.fits(q, torch.float64)


def _outcome(accepted: int, tail: int) -> Verdict | Fault:
    """Of what the kernels say, where a tail of -1 is a row with a logit that is not finite."""
    return Fault(accepted, NOT_FINITE) if tail < 0 else Verdict(accepted, tail)


def _samples(proposal: Proposal, seq: Sequence) -> bool:
    """Whether the target's own token at each row decides: under `match` and where it is the largest, and wherever no law is reported.

    Rejection of a point mass keeps a draft x with probability p(x), and else draws from p without x. That is one draw from p: the draft
    stands where it is what was drawn. So without drafts, and with those that were looked up, every rule gives the text of plain sampling.
    """
    return not proposal.tokens or proposal.probs is None or seq.rule == "match" or seq.params.greedy


def _by_laws(logits: Tensor, proposal: Proposal, seq: Sequence) -> Verdict | Fault:
    drafts, q = proposal.tokens, proposal.probs
    shaped, fault = _usable(logits, seq, drafts)
    if fault is not None:
        drafts, q = drafts[: fault.accepted], None if q is None else q[: fault.accepted]
    verdict = _decide(shaped, Proposal(drafts, q), seq)
    return fault if fault is not None and verdict.accepted == fault.accepted else verdict


def _usable(logits: Tensor, seq: Sequence, drafts: list[int]) -> tuple[Tensor, Fault | None]:
    """The shaped rows. From the first row on that has no law they are cut off, with a placeholder for that row itself."""
    if not bool(torch.isfinite(logits.sum())):
        row = int(torch.isfinite(logits.sum(-1)).logical_not().nonzero()[0])
        return _until(row, NOT_FINITE, logits, seq, drafts)
    try:
        shaped = shape(logits, seq, drafts)
    except ProcessorError as e:
        return _until(e.row, str(e), logits, seq, drafts)
    if shaped is logits:
        return shaped, None
    top = shaped.amax(-1)  # NaN where a row holds one, -inf where nothing may come
    if bool(torch.isfinite(top).all()):
        return shaped, None
    row = int(torch.isfinite(top).logical_not().nonzero()[0])
    nothing = bool(top[row] == float("-inf"))
    words = "the options of this request allow no token" if nothing else "a logits processor gave logits that are not finite"
    return _until(row, words, logits, seq, drafts)


def _until(row: int, words: str, logits: Tensor, seq: Sequence, drafts: list[int]) -> tuple[Tensor, Fault]:
    placeholder = torch.zeros_like(logits[:1])
    rows = [shape(logits[:row], seq, drafts[: row - 1])] if row else []
    return torch.cat([*rows, placeholder]), Fault(row, words)


def _decide(logits: Tensor, proposal: Proposal, seq: Sequence) -> Verdict:
    drafts, params = proposal.tokens, seq.params
    if params.greedy:
        return acceptance.verify_match(logits.argmax(-1).tolist(), drafts)
    if not _samples(proposal, seq):
        return _by_uniforms(_drafted(logits, proposal, seq))
    p = law(logits, params)
    choices: list[int] = []
    for i in range(len(drafts) + 1):
        choices.append(race(p[i], seq.seed, len(seq.tokens) + i))
        if i < len(drafts) and choices[i] != drafts[i]:
            break
    return acceptance.verify_match(choices, drafts)


def _by_uniforms(d: kernels.Drafted) -> Verdict:
    """Of shaped rows, each of which has a law."""
    if (by := active()).handle is not None and _fits(d.logits, d.laws):
        return Verdict(*kernels.judge(by, [d], checked=True)[0])
    return judge(law(d.logits, d.params), d.drafts, d.laws, d.rule, d.accept, d.tail)


def judge(p: Tensor, drafts: list[int], q: Tensor, rule: str, u: list[float], u_tail: float) -> Verdict:
    """Rejection or block verification of laws p [k + 1, V], q [k, V] on given uniforms."""
    k, vocab = len(drafts), p.shape[1]
    at = torch.tensor([i * vocab + x for i, x in enumerate(drafts)], dtype=torch.int64, device=p.device)
    p_x, q_x = p.take(at).tolist(), q.take(at).tolist()
    ps, qs = array_of(p), array_of(q)
    weights = [1.0] * k
    if rule == "block":
        weights = acceptance.block_weights(p_x, q_x)
        mass = [float(_excess(ps[i], qs[i], weights[i]).sum()) for i in range(1, k)]
        kept = acceptance.accept_block(weights, mass, u)
    else:
        kept = acceptance.accept_prefix(p_x, q_x, u)
    left = ps[kept]
    if kept < k:
        excess = _excess(left, qs[kept], weights[kept])
        left = excess if excess.sum() > 0 else left
    return Verdict(kept, pick(torch.as_tensor(left), u_tail))


def array_of(law: Tensor) -> Any:
    """A law [k, V] in fp64; on the CPU as an array of numpy, since torch wakes other threads for a row, which takes longer than the row."""
    law = law.detach().double()
    return law.numpy() if law.is_cpu else law


def _excess(p: Any, q: Any, weight: float) -> Any:
    """max(weight p - q, 0) of rows [V]: what is left of p, not normalised, where a draft of q has fallen."""
    return (p * weight - q).clip(min=0)
