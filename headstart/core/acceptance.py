"""The definition of lossless: verification of one sequence's drafts, on plain numbers.

Works on floats and on `fractions.Fraction` alike, so the tests prove the output law equal to the target's with `==`.
Knows nothing of models, batches or random generators: uniforms are arguments. `ops/verify.py` is the tensor twin.

Notation: p[i] is the target's law at the i-th new position given drafts 0..i-1 (k + 1 rows), q[i] the law draft i was
drawn from (k rows), or q is None when the drafter reports no law: then each draft is judged as a point mass, which is
lossless however it was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.core.types import Verdict

Number = Any  # float or Fraction
Law = Sequence[Number]


def accept_prefix(p_x: Law, q_x: Law, u: Law) -> int:
    """Drafts kept by token-level rejection sampling: the longest prefix with u_i q_i(x_i) < p_i(x_i).

    Leviathan et al. 2211.17192 and Chen et al. 2302.01318. No division, and strict, so that u = 0 never keeps a token
    of probability 0. `p_x`, `q_x` and `u` hold one number per draft; a point mass has q_x = 1.
    """
    for i, (p, q, v) in enumerate(zip(p_x, q_x, u, strict=True)):
        if not v * q < p:
            return i
    return len(p_x)


def block_weights(p_x: Law, q_x: Law) -> list[Number]:
    """Running weights w_0..w_k of block verification: w_0 = 1, w_i = min(1, w_(i-1) p_i / q_i) (Sun et al. 2403.10444)."""
    weights: list[Number] = [p_x[0] * 0 + 1] if len(p_x) else [1]
    for p, q in zip(p_x, q_x, strict=True):
        ratio = weights[-1] * p / q if q > 0 else 0
        weights.append(min(weights[0], ratio))
    return weights


def accept_block(weights: Law, residual_mass: Law, u: Law) -> int:
    """Drafts kept by block verification: the largest i with u_i < h_i, scanning all positions (a break is biased).

    `weights` are w_0..w_k; `residual_mass[i]` is Z_i = sum_v max(w_i p_(i+1)(v) - q_(i+1)(v), 0) for i = 1..k-1, at
    index i - 1 (k - 1 numbers); `u` holds k uniforms. h_i = Z_i / (Z_i + 1 - w_i), 1 when that is 0/0, and h_k = w_k.
    """
    k, kept = len(u), 0
    for i in range(1, k + 1):
        w = weights[i]
        if i == k:
            h = w
        else:
            z, rest = residual_mass[i - 1], 1 - w  # in this order, so that h is exactly 1 at w = 1 in floats too
            h = z / (z + rest) if z + rest > 0 else 1
        if u[i - 1] < h:
            kept = i
    return kept


def residual(p: Law, q: Law, weight: Number = 1) -> list[Number]:
    """Unnormalised law of the tail after a rejection: max(weight p - q, 0); p itself when that has no mass.

    No mass means p = q to rounding: falling back to p is the limit, an arbitrary id would be an error nobody sees.
    """
    left = [max(weight * a - b, a * 0) for a, b in zip(p, q, strict=True)]
    return left if sum(left) > 0 else list(p)


def without(p: Law, token: int) -> list[Number]:
    """Unnormalised law of the tail after a rejected point mass: p with that token zeroed."""
    left = [x * 0 if v == token else x for v, x in enumerate(p)]
    return left if sum(left) > 0 else list(p)


def pick(weights: Law, u: Number) -> int:
    """Inverse CDF: the index where the running sum passes u * total. Never an index of weight 0."""
    target, run, last = u * sum(weights), weights[0] * 0, 0
    for v, w in enumerate(weights):
        if w > 0:
            run += w
            last = v
            if target < run:
                return v
    return last  # u * total rounded up to total


def verify_token(p: Sequence[Law], drafts: Sequence[int], q: Sequence[Law] | None, u: Law, u_tail: Number) -> Verdict:
    """Token-level rejection sampling of k drafts: `p` has k + 1 laws, `q` k laws or None, `u` k uniforms."""
    k = len(drafts)
    p_x = [p[i][x] for i, x in enumerate(drafts)]
    q_x = [1 if q is None else q[i][x] for i, x in enumerate(drafts)]
    kept = accept_prefix(p_x, q_x, u)
    if kept == k:
        tail = pick(p[k], u_tail)
    elif q is None:
        tail = pick(without(p[kept], drafts[kept]), u_tail)
    else:
        tail = pick(residual(p[kept], q[kept]), u_tail)
    return Verdict(kept, tail)


def verify_block(p: Sequence[Law], drafts: Sequence[int], q: Sequence[Law] | None, u: Law, u_tail: Number) -> Verdict:
    """Block verification of k drafts; never fewer tokens in expectation than `verify_token`.

    With point masses the two keep equally many drafts in expectation, so those go to `verify_token`.
    """
    if q is None:
        return verify_token(p, drafts, q, u, u_tail)
    k = len(drafts)
    weights = block_weights([p[i][x] for i, x in enumerate(drafts)], [q[i][x] for i, x in enumerate(drafts)])
    mass = [sum(max(weights[i] * a - b, 0) for a, b in zip(p[i], q[i], strict=True)) for i in range(1, k)]
    kept = accept_block(weights, mass, u)
    tail = pick(p[k] if kept == k else residual(p[kept], q[kept], weights[kept]), u_tail)
    return Verdict(kept, tail)


def verify_match(choices: Sequence[int], drafts: Sequence[int]) -> Verdict:
    """Sample-and-match: `choices` are the target's own k + 1 samples; drafts stand while they equal them.

    Every emitted token is the target's own sample, so the law is the target's whatever the drafter does.
    Greedy decoding is this rule with choices = argmax.
    """
    kept = 0
    while kept < len(drafts) and drafts[kept] == choices[kept]:
        kept += 1
    return Verdict(kept, choices[kept])
