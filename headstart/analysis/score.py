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
from headstart.core.memory import blocks_of
from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import Drafter
from headstart.draft.guard import Guard
from headstart.ops.sampling import law
from headstart.runtime.runner import Feed, Runner

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
    engine = llm.engine
    size, longest_text = engine.pool.block_size, max((len(t.prompt) + len(t.answer) for t in texts), default=0)
    # Runners of their own, for one text: no block of the engine is touched.
    reader = lambda model: Runner(model, blocks_of(longest_text, size), size, engine.target.vocab, engine.target.max_len)  # noqa: E731
    target, models = reader(engine.target.model), [d.text_model() for d in drafters]
    readers = [None if model is None else reader(model) for model in models]
    for d in drafters:
        d.attach(engine.target)
    truths: list[Truth] = []
    scores: list[list[Score]] = [[] for _ in drafters]
    for number, text in enumerate(texts):
        truth, own = _one(llm, target, drafters, readers, number, text, params, longest)
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
    llm: LLM,
    target: Runner,
    drafters: Seq[Drafter],
    readers: Seq[Runner | None],
    number: int,
    text: Trajectory,
    params: SamplingParams,
    longest: int,
) -> tuple[Truth, list[Score]]:
    tokens = text.prompt + text.answer
    table = list(range(blocks_of(len(tokens), target.block_size)))
    walks = [None if r else _walk(llm, target, d, number, text, params, longest) for d, r in zip(drafters, readers, strict=True)]
    parts: list[list[dict[str, Tensor]]] = [[] for _ in drafters]
    truth: list[tuple[Tensor, Tensor]] = []
    first = len(text.prompt) - 1  # the row that predicts the first token of the answer
    for start in range(0, len(tokens) - 1, ROWS):
        stop = min(start + ROWS, len(tokens) - 1)
        rows = max(0, stop - max(start, first))
        feed = Feed(tokens[start:stop], start, table, rows)
        logits = target.forward([feed])[0]
        theirs = [r.forward([feed])[0] if r else None for r in readers]
        if not rows:
            continue
        came = torch.tensor(tokens[stop - rows + 1 : stop + 1], device=logits.device)
        p, soft = law(logits, params), law(logits, plain_law(params))
        done = sum(len(t[0]) for t in truth)
        truth.append((laws.entropy(soft), p.gather(-1, came[:, None])[:, 0]))
        for own, d, scored, walk in zip(parts, drafters, theirs, walks, strict=True):
            if scored is not None:
                own.append(_model_rows(p, soft, scored, came, d, params))
            elif walk is not None:
                own.append(_walked_rows(p, soft, walk[done : done + rows], came))
    found = []
    for own, walk in zip(parts, walks, strict=True):
        joined = {name: torch.cat([part[name] for part in own]).cpu().numpy() for name in own[0] if name != "tuned"}
        found.append(_model_score(joined, own, longest) if walk is None else _walked_score(joined, walk, text, longest))
    entropy, chance = (torch.cat([t[i] for t in truth]).cpu().numpy() for i in (0, 1))
    return Truth(entropy, chance), found


@dataclass
class _Proposed:
    """What a drafter said at one root: its drafts, and the law [V] of the first one if it reported one."""

    tokens: list[int]
    law: Tensor | None


def _walk(
    llm: LLM, target: Runner, drafter: Drafter, number: int, text: Trajectory, params: SamplingParams, longest: int
) -> list[_Proposed]:
    """What a drafter drafts at every root of a text, which is shown to it as the engine would, one token a step."""
    engine, guard = llm.engine, Guard(drafter, llm.engine.target.vocab)
    seq = Sequence(-1 - number, "analysis", 0, replace(params, max_tokens=None), list(text.prompt), len(text.prompt), text.seed)
    seq.max_len = len(text.prompt) + len(text.answer) + longest + 1
    seq.table = list(range(min(engine.pool.num_blocks, -(-seq.max_len // engine.pool.block_size))))
    states = _states(target, drafter, text)
    out = []
    for token in text.answer:
        chunk = Chunk(seq, len(seq.tokens) - seq.computed, longest)
        made = guard.propose([chunk])[0]
        out.append(_Proposed(list(made.tokens)[:longest], None if made.probs is None else made.probs[0].clone()))
        if states is not None:
            guard.see([chunk], [states[seq.computed : len(seq.tokens)]])
        seq.tokens.append(token)
        seq.computed = len(seq.tokens) - 1
        guard.observe([chunk])
    guard.forget(seq)
    return out


def _states(target: Runner, drafter: Drafter, text: Trajectory) -> Tensor | None:
    """The target's hidden states at every position of a text, for a drafter that reads them."""
    if not drafter.hidden_layers:
        return None
    tokens, out = text.prompt + text.answer, []
    table = list(range(blocks_of(len(tokens), target.block_size)))
    for start in range(0, len(tokens), ROWS):
        feed = Feed(tokens[start : start + ROWS], start, table)
        out += target.forward_with_states([feed], drafter.hidden_layers)[1]
    return torch.cat(out)


def _distances(p: Tensor, soft: Tensor, q: Tensor, q_soft: Tensor, likeliest: Tensor, came: Tensor) -> dict[str, Tensor]:
    """Figures of a law at each row, and how likely a draft of it stands, given the token that came."""
    at = came[:, None]
    p_y, q_y = p.gather(-1, at)[:, 0], q.gather(-1, at)[:, 0]
    return {
        "ratio": torch.where(p_y > 0, q_y / p_y.clamp_min(1e-300), 0.0),
        "match": laws.shared_noise(p, q, came),
        "greedy": (likeliest == came).double(),
        "alpha": laws.overlap(p, q),
        "agrees": (likeliest == soft.argmax(-1)).double(),
        "forward": laws.divergence(soft, q_soft),
        "reverse": laws.divergence(q_soft, soft),
        "independent": (p * q).sum(-1),
    }


def _model_rows(p: Tensor, soft: Tensor, logits: Tensor, came: Tensor, drafter: Drafter, params: SamplingParams) -> dict[str, Tensor]:
    """Figures of a draft with a law of the text alone."""
    own = params if drafter.temperature is None or params.greedy else params.with_temperature(drafter.temperature)
    tuned = [] if params.greedy else [laws.overlap(p, law(logits, params.with_temperature(t))) for t in TEMPERATURES]
    found = _distances(p, soft, law(logits, own), law(logits, plain_law(own)), logits.argmax(-1), came)
    return {**found, "tuned": torch.stack(tuned) if tuned else torch.zeros((0, len(came)))}


def _model_score(rows: dict[str, Array], parts: Seq[dict[str, Tensor]], longest: int) -> Score:
    tuned = torch.cat([part["tuned"] for part in parts], dim=1).tolist()
    by_temperature = dict(zip(TEMPERATURES, tuned, strict=True)) if tuned else {}
    return Score(_chains(rows, longest), np.full(len(rows["alpha"]), longest), tuned=by_temperature, **_figures(rows))


def _chains(rows: dict[str, Array], longest: int) -> dict[str, Array]:
    """By rule, how likely so many drafts stand."""
    return {
        "rejection": chain(np.minimum(rows["ratio"], 1.0), longest),
        "block": block_chain(rows["ratio"], longest),
        "match": chain(rows["match"], longest),
        "greedy draft": chain(rows["greedy"], longest),
    }


def _figures(rows: dict[str, Array]) -> dict[str, Array]:
    return {name: rows[name] for name in ("alpha", "agrees", "forward", "reverse", "independent")}


def _walked_rows(p: Tensor, soft: Tensor, walk: Seq[_Proposed], came: Tensor) -> dict[str, Tensor]:
    """Figures of what was proposed, at each row: of its first draft's law, or of the draft as a point mass."""
    made = torch.tensor([bool(w.tokens) for w in walk], device=p.device)
    known = torch.tensor([w.law is not None for w in walk], device=p.device)
    x = torch.tensor([w.tokens[0] if w.tokens else 0 for w in walk], device=p.device)
    at = x[:, None]
    alpha, likely = p.gather(-1, at)[:, 0], soft.gather(-1, at)[:, 0]
    hit = (made & (x == came)).double()
    points = {
        "ratio": hit,
        "match": hit,
        "greedy": hit,
        "alpha": alpha,
        "agrees": (x == soft.argmax(-1)).double(),
        # A point mass leaves out whatever else p allows; where p allows nothing else the two are one.
        "forward": torch.where(likely < 1, float("inf"), 0.0),
        "reverse": -likely.log(),
        "independent": alpha,
    }
    kept = ("ratio", "match", "greedy")
    found = {n: v if n in kept else torch.where(made, v, float("nan")) for n, v in points.items()}
    if bool(known.any()):
        q = torch.stack([torch.zeros_like(p[0]) if w.law is None else w.law.to(p) for w in walk])
        own = _distances(p, soft, q, q, q.argmax(-1), came)
        found = {n: torch.where(known, own[n], v) for n, v in found.items()}
    return found


def _walked_score(rows: dict[str, Array], walk: Seq[_Proposed], text: Trajectory, longest: int) -> Score:
    """Where no law was reported, the drafts decide. Where one was, later positions are judged by the law that drafting would begin
    with there: for a drafter whose law depends on more than the text, that is an approximation."""
    points = point_chain([w.tokens for w in walk], text.answer, longest)
    known = np.array([w.law is not None for w in walk])[:, None]
    stands = {rule: np.where(known, own, points) for rule, own in _chains(rows, longest).items()}
    return Score(stands, np.array([len(w.tokens) for w in walk]), tuned={}, **_figures(rows))
