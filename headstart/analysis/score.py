"""What each drafter would have done at every point of the target's texts: laws where it has them, else its drafts.

Teacher-forced: the text is fed in large passes, target and drafts side by side, and nothing of the vocabulary's size outlives a pass
(for a head the target's law over the head's own tokens does: each of its drafts has a law of its own, see unroll.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.analysis import laws
from headstart.analysis.figures import TEMPERATURES, Proposed, Rows, Truths, model_rows, own_params, plain_law, standing, walked_rows
from headstart.analysis.replay import Array, block_chain, chain, point_chain, windows
from headstart.analysis.trajectory import Trajectory
from headstart.analysis.unroll import unrolled
from headstart.api import LLM
from headstart.core.memory import blocks_of
from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import Drafter
from headstart.draft.guard import Guard
from headstart.draft.head import HeadDrafter
from headstart.ops.sampling import law
from headstart.runtime.runner import Feed, Runner

RULES = ("rejection", "block", "match", "greedy draft")
FIGURES = ("alpha", "agrees", "forward", "reverse", "independent")  # of `Score`
ROWS = 128  # of a pass whose rows are all scored: each has fp64 laws of the whole vocabulary


@dataclass
class Score:
    """One drafter on one text of N tokens. Arrays are [N], one number for each token of the answer.

    stands: by rule, [N, K + 1] as in replay.py. lengths: drafts there are at each root.
    alpha: what rejection keeps at this position, p(x) for a point mass x, NaN where nothing is drafted; agrees: whether the likeliest
    tokens of both are one (the first draft and the target's likeliest). forward, reverse: KL(p, q), KL(q, p). independent: sum p q.
    by_draft: alpha of draft j from each root if the drafts before it are the text, [N, K], NaN beyond the end; None without such laws.
    """

    stands: dict[str, Array]
    lengths: Array
    alpha: Array
    agrees: Array
    forward: Array
    reverse: Array
    independent: Array
    by_draft: Array | None = None
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
    walks = [
        None if r or isinstance(d, HeadDrafter) else _walk(llm, target, d, number, text, params, longest)
        for d, r in zip(drafters, readers, strict=True)
    ]
    parts: list[list[Any]] = [[] for _ in drafters]
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
        p = law(logits, params)
        soft = law(logits, plain_law(params)) if params.greedy else p
        now, done = Truths(p, soft, came, soft.argmax(-1)), sum(len(t[0]) for t in truth)
        truth.append((laws.entropy(soft), p.gather(-1, came[:, None])[:, 0]))
        for own, d, scored, walk in zip(parts, drafters, theirs, walks, strict=True):
            if isinstance(d, HeadDrafter):
                own.append(now.among(d.model.ids))
            elif scored is not None:
                own.append(model_rows(now, scored, d, params))
            elif walk is not None:
                own.append(walked_rows(now, walk[done : done + rows]))
    found = []
    for own, d, walk in zip(parts, drafters, walks, strict=True):
        if isinstance(d, HeadDrafter):
            found.append(_head_score(d, Truths.joined(own), text, _states(target, d, text), params, longest))
        else:
            found.append(_model_score(own, longest) if walk is None else _walked_score(own, walk, text, longest))
    entropy, chance = (torch.cat([t[i] for t in truth]).cpu().numpy() for i in (0, 1))
    return Truth(entropy, chance), found


def _walk(
    llm: LLM, target: Runner, drafter: Drafter, number: int, text: Trajectory, params: SamplingParams, longest: int
) -> list[Proposed]:
    """What a drafter drafts at every root of a text, which is shown to it as the engine would, one token a step."""
    engine, guard = llm.engine, Guard(drafter, llm.engine.target.vocab)
    seq = Sequence(-1 - number, "analysis", 0, replace(params, max_tokens=None), list(text.prompt), len(text.prompt), text.seed)
    seq.max_len = len(text.prompt) + len(text.answer) + longest + 1
    seq.table = list(range(min(engine.pool.num_blocks, -(-seq.max_len // engine.pool.block_size))))
    states = _states(target, drafter, text) if drafter.hidden_layers else None
    out = []
    for token in text.answer:
        chunk = Chunk(seq, len(seq.tokens) - seq.computed, longest)
        made = guard.propose([chunk])[0]
        out.append(Proposed(list(made.tokens)[:longest], None if made.probs is None else made.probs[0].clone()))
        if states is not None:
            guard.see([chunk], [states[seq.computed : len(seq.tokens)]])
        seq.tokens.append(token)
        seq.computed = len(seq.tokens) - 1
        guard.observe([chunk])
    guard.forget(seq)
    return out


def _states(target: Runner, drafter: Drafter, text: Trajectory) -> Tensor:
    """The target's hidden states at every position of a text, for a drafter that reads them."""
    tokens, out = text.prompt + text.answer, []
    table = list(range(blocks_of(len(tokens), target.block_size)))
    for start in range(0, len(tokens), ROWS):
        feed = Feed(tokens[start : start + ROWS], start, table)
        out += target.forward_with_states([feed], drafter.hidden_layers)[1]
    return torch.cat(out)


def _model_score(parts: Seq[tuple[Rows, Tensor]], longest: int) -> Score:
    """A model's law is one of the text alone: a later draft has the law of the first one there."""
    rows = _joined([found for found, _ in parts])
    each = {name: windows(rows[name], longest) for name in ("ratio", "match", "greedy")}
    by_draft = windows(rows["alpha"], longest, beyond=np.nan)
    lengths = np.full(len(by_draft), longest)
    return Score(_chains(each), lengths, **_figures(rows), by_draft=by_draft, tuned=_tuned([t for _, t in parts]))


def _head_score(head: HeadDrafter, truth: Truths, text: Trajectory, states: Tensor, params: SamplingParams, longest: int) -> Score:
    """Each draft of a head by its own law. At the first root it has seen no state and drafts nothing, as in the engine."""
    count, first = len(text.answer), len(text.prompt) + 1
    each = {name: np.zeros((count, longest)) for name in ("ratio", "match", "greedy")}
    by_draft = np.full((count, longest), np.nan)
    rows = {name: np.full(count, np.nan) for name in FIGURES}
    tuned = torch.zeros((0, 0))
    for draft, logits in enumerate(unrolled(head.model, text.prompt + text.answer, states, first, longest)):
        scored, at = F.pad(logits, (0, 1), value=float("-inf")), truth[1 + draft :]
        if draft == 0:
            found, tuned = model_rows(at, scored, head, params)
            for name in rows:
                rows[name][1:] = found[name].cpu()
        else:
            found = standing(at, law(scored, own_params(head, params)), scored.argmax(-1))
        roots = slice(1, count - draft)
        for name in each:
            each[name][roots, draft] = found[name].cpu()
        by_draft[roots, draft] = found["alpha"].cpu()
    room = np.clip(head.max_len + 2 - len(text.prompt) - np.arange(count), 0, longest)  # within its own context
    room[:1] = 0
    return Score(_chains(each), room, **_figures(rows), by_draft=by_draft, tuned=_tuned([tuned]))


def _joined(parts: Seq[Rows]) -> dict[str, Array]:
    return {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}


def _tuned(parts: Seq[Tensor]) -> dict[float, list[float]]:
    """alpha by draft temperature; nothing where the target's law is a point."""
    return dict(zip(TEMPERATURES, torch.cat(list(parts), 1).tolist(), strict=False))


def _chains(each: dict[str, Array]) -> dict[str, Array]:
    """By rule, how likely so many drafts stand, from figures [N, K] of each draft from each root."""
    return {
        "rejection": chain(np.minimum(each["ratio"], 1.0)),
        "block": block_chain(each["ratio"]),
        "match": chain(each["match"]),
        "greedy draft": chain(each["greedy"]),
    }


def _figures(rows: dict[str, Array]) -> dict[str, Array]:
    return {name: rows[name] for name in FIGURES}


def _walked_score(parts: Seq[Rows], walk: Seq[Proposed], text: Trajectory, longest: int) -> Score:
    """Where no law was reported, the drafts decide. Where one was, later positions are judged by the law that drafting would begin
    with there: for a drafter whose law depends on more than the text, that is an approximation."""
    rows = _joined(parts)
    points = point_chain([w.tokens for w in walk], text.answer, longest)
    known = np.array([w.law is not None for w in walk])[:, None]
    each = _chains({name: windows(rows[name], longest) for name in ("ratio", "match", "greedy")})
    stands = {rule: np.where(known, own, points) for rule, own in each.items()}
    return Score(stands, np.array([len(w.tokens) for w in walk]), **_figures(rows), tuned={})
