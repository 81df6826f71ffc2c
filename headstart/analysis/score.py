"""What each drafter would have done at every point of the target's texts: laws where it has them, else its drafts.

Teacher-forced: the text is fed in large passes, target and drafts side by side, and nothing of the vocabulary's size outlives a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from headstart.analysis import laws
from headstart.analysis.replay import Array, block_chain, chain, point_chain
from headstart.analysis.trajectory import Trajectory
from headstart.api import LLM
from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import Drafter
from headstart.ops.sampling import law
from headstart.runtime.runner import Feed

RULES = ("rejection", "block", "match", "greedy draft")
TEMPERATURES = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6)
ROWS = 128  # of a pass whose rows are all scored: each has fp64 laws of the whole vocabulary


@dataclass
class Score:
    """One drafter on one text of N tokens. Arrays are [N], one number for each token of the answer.

    stands: by rule, [N, K + 1] as in replay.py. lengths: drafts there are at each root.
    alpha: what rejection keeps at this position, p(x) for a point mass x, NaN where nothing is drafted; agrees: whether the likeliest
    tokens of both are one (the first draft and the target's likeliest). forward, reverse: KL(p, q), KL(q, p). independent: sum p q.
    """

    stands: dict[str, Array]
    lengths: Array
    alpha: Array
    agrees: Array
    forward: Array
    reverse: Array
    independent: Array
    tuned: dict[float, list[float]] = field(default_factory=dict)  # alpha by draft temperature


@dataclass
class Truth:
    """The target on one text: the entropy of its law at each token [N], in nats, and the chance of the token that came."""

    entropy: Array
    chance: Array


def score(
    llm: LLM, drafters: Seq[Drafter], texts: Seq[Trajectory], params: SamplingParams, longest: int, step: Callable[[], bool]
) -> tuple[list[Truth], list[list[Score]]]:
    """(target, [drafter][text] scores) of every text; `step()` after each, True to stop there.

    params: the options of the target's law: temperature and filters. longest: draft positions, K. The engine must be idle.
    """
    truths: list[Truth] = []
    scores: list[list[Score]] = [[] for _ in drafters]
    for number, text in enumerate(texts):
        truth, own = _one(llm, drafters, number, text, params, longest)
        truths.append(truth)
        for found, new in zip(scores, own, strict=True):
            found.append(new)
        if step():
            break
    return truths, scores


def plain_law(params: SamplingParams) -> SamplingParams:
    """The options whose law is looked at where that of `params` is a point: at temperature 0, the model's own at 1."""
    return SamplingParams(temperature=1.0) if params.greedy else params


@torch.inference_mode()
def _one(
    llm: LLM, drafters: Seq[Drafter], number: int, text: Trajectory, params: SamplingParams, longest: int
) -> tuple[Truth, list[Score]]:
    engine, tokens = llm.engine, text.prompt + text.answer
    engine.pool.forget()  # the blocks are written to: nothing may be found in them afterwards
    table = list(range(-(-len(tokens) // engine.pool.block_size)))
    models = [d for d in drafters if _lawful(d, engine.target.vocab)]
    lookups = {id(d): _drafts(d, number, text, params, longest) for d in drafters if d not in models}
    parts: dict[int, list[dict[str, Tensor]]] = {id(d): [] for d in drafters}
    truth: list[tuple[Tensor, Tensor]] = []
    first = len(text.prompt) - 1  # the row that predicts the first token of the answer
    for start in range(0, len(tokens) - 1, ROWS):
        stop = min(start + ROWS, len(tokens) - 1)
        rows = max(0, stop - max(start, first))
        logits = engine.target.forward([Feed(tokens[start:stop], start, table, rows)])[0]
        theirs = {id(d): d.score(tokens[start:stop], start, table, rows) for d in models}
        if not rows:
            continue
        came = torch.tensor(tokens[stop - rows + 1 : stop + 1], device=logits.device)
        p, soft = law(logits, params), law(logits, plain_law(params))
        truth.append((laws.entropy(soft), p.gather(-1, came[:, None])[:, 0]))
        done = sum(len(t[0]) for t in truth) - rows
        for d in drafters:
            if id(d) in theirs:
                parts[id(d)].append(_model_rows(p, soft, theirs[id(d)], came, d, params))
            else:
                parts[id(d)].append(_lookup_rows(p, soft, lookups[id(d)][done : done + rows]))
    found = []
    for d in drafters:
        joined = {name: torch.cat([part[name] for part in parts[id(d)]]).cpu().numpy() for name in parts[id(d)][0] if name != "tuned"}
        if id(d) in lookups:
            found.append(_lookup_score(joined, lookups[id(d)], text, longest))
        else:
            tuned = torch.cat([part["tuned"] for part in parts[id(d)]], dim=1).tolist()
            found.append(_model_score(joined, dict(zip(TEMPERATURES, tuned, strict=True)) if tuned else {}, longest))
    entropy, chance = (torch.cat([t[i] for t in truth]).cpu().numpy() for i in (0, 1))
    return Truth(entropy, chance), found


def _lawful(drafter: Drafter, vocab: int) -> bool:
    """Whether a drafter has a law of the text alone over the target's ids: asked with one token, and forgotten."""
    logits = drafter.score([0], 0, [0], 1)
    return logits is not None and logits.shape[-1] == vocab


def _drafts(drafter: Drafter, number: int, text: Trajectory, params: SamplingParams, longest: int) -> list[list[int]]:
    """What a drafter drafts at every root of a text."""
    options = replace(params, max_tokens=None, seed=number)
    seq = Sequence(-1 - number, "analysis", 0, options, list(text.prompt), len(text.prompt), number, rule="match")
    seq.max_len = len(text.prompt) + len(text.answer) + longest + 1
    drafter.observe([Chunk(seq, len(text.prompt))])
    out = []
    for token in text.answer:
        out.append(list(drafter.propose([Chunk(seq, 1, longest)])[0].tokens)[:longest])
        seq.tokens.append(token)
        drafter.observe([Chunk(seq, 1)])
    drafter.forget(seq)
    return out


def _model_rows(p: Tensor, soft: Tensor, logits: Tensor, came: Tensor, drafter: Drafter, params: SamplingParams) -> dict[str, Tensor]:
    """Figures of a draft with a law, at each row."""
    own = params if drafter.temperature is None or params.greedy else params.with_temperature(drafter.temperature)
    q, q_soft = law(logits, own), law(logits, plain_law(own))
    likeliest = logits.argmax(-1)
    at = came[:, None]
    p_y, q_y = p.gather(-1, at)[:, 0], q.gather(-1, at)[:, 0]
    ratio = torch.where(p_y > 0, q_y / p_y.clamp_min(1e-300), 0.0)
    tuned = [] if params.greedy else [laws.overlap(p, law(logits, params.with_temperature(t))) for t in TEMPERATURES]
    return {
        "ratio": ratio,
        "match": laws.shared_noise(p, q, came),
        "greedy": (likeliest == came).double(),
        "alpha": laws.overlap(p, q),
        "agrees": (likeliest == soft.argmax(-1)).double(),
        "forward": laws.divergence(soft, q_soft),
        "reverse": laws.divergence(q_soft, soft),
        "independent": (p * q).sum(-1),
        "tuned": torch.stack(tuned) if tuned else torch.zeros((0, len(came))),
    }


def _model_score(rows: dict[str, Array], tuned: dict[float, list[float]], longest: int) -> Score:
    stands = {
        "rejection": chain(np.minimum(rows["ratio"], 1.0), longest),
        "block": block_chain(rows["ratio"], longest),
        "match": chain(rows["match"], longest),
        "greedy draft": chain(rows["greedy"], longest),
    }
    lengths = np.full(len(rows["alpha"]), longest)
    figures = {name: rows[name] for name in ("alpha", "agrees", "forward", "reverse", "independent")}
    return Score(stands, lengths, tuned=tuned, **figures)


def _lookup_rows(p: Tensor, soft: Tensor, drafts: Seq[Seq[int]]) -> dict[str, Tensor]:
    """Figures of drafts that are point masses, at each row: those of the first draft."""
    made = torch.tensor([bool(d) for d in drafts], device=p.device)
    x = torch.tensor([d[0] if d else 0 for d in drafts], device=p.device)
    alpha = torch.where(made, p.gather(-1, x[:, None])[:, 0], float("nan"))
    likely = soft.gather(-1, x[:, None])[:, 0]
    nothing = torch.full_like(alpha, float("nan"))
    return {
        "alpha": alpha,
        "agrees": torch.where(made, (x == soft.argmax(-1)).double(), nothing),
        # A point mass leaves out whatever else p allows; where p allows nothing else the two are one.
        "forward": torch.where(made, torch.where(likely < 1, float("inf"), 0.0), nothing),
        "reverse": torch.where(made, -likely.log(), nothing),
        "independent": alpha,
    }


def _lookup_score(rows: dict[str, Array], drafts: Seq[Seq[int]], text: Trajectory, longest: int) -> Score:
    stands = point_chain(drafts, text.answer, longest)
    return Score(dict.fromkeys(RULES, stands), np.array([len(d) for d in drafts]), tuned={}, **rows)
