"""From scores and costs to predictions: one dictionary of plain numbers, which is analysis.json and all that the reports draw.

docs/choose.md describes it. `VERSION` changes when a field changes its meaning or goes. Times are seconds, KL is in nats.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart import __version__
from headstart.analysis.costs import Costs
from headstart.analysis.pool import pooled
from headstart.analysis.replay import Array, Passes, passes
from headstart.analysis.score import RULES, Score, Truth
from headstart.analysis.trajectory import Trajectory
from headstart.api import LLM
from headstart.bench.arms import Arm
from headstart.bench.summary import machine
from headstart.core.params import SamplingParams
from headstart.core.theory import alpha_bounds

VERSION = 1
ENTROPIES = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0)  # lower ends of the bins, in nats
_SAMPLES = 2  # texts shown token by token
_SAMPLE_TOKENS = 160


@dataclass(frozen=True)
class Analysis:
    """All that was found out. `scores[arm][text]`."""

    texts: Seq[Trajectory]
    truths: Seq[Truth]
    arms: Seq[Arm]
    scores: Seq[Seq[Score]]
    costs: Costs
    params: SamplingParams
    rule: str
    longest: int


def document(llm: LLM, a: Analysis, source: str, notes: Seq[str], interrupted: bool) -> dict[str, Any]:
    """The whole report, before anything was run to compare with."""
    model = llm.engine.target.model
    drafters = [_drafter(a, arm, own) for arm, own in zip(a.arms, a.scores, strict=True)]
    ranking = sorted(drafters, key=lambda d: -d["best_speedup"]["median"])
    pays = bool(ranking) and ranking[0]["best_speedup"]["median"] > 1
    entropy = np.concatenate([t.entropy for t in a.truths])
    return {
        "version": VERSION,
        "headstart": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "interrupted": interrupted,
        "machine": machine(),
        "model": {
            "name": llm.config.model,
            "parameters": getattr(model, "parameters", None),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
        },
        "notes": list(notes),
        "settings": {
            **{name: getattr(a.params, name) for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens")},
            "verify": a.rule,
            "num_speculative_tokens": a.longest,
        },
        "workload": {
            "source": source,
            "texts": len(a.texts),
            "tokens": len(entropy),
            "categories": dict(Counter(t.category for t in a.texts)),
            "entropy": float(entropy.mean()),
            "entropy_bins": [{"from": low, "tokens": int(n)} for low, n in zip(ENTROPIES, _binned(entropy), strict=True)],
        },
        "costs": {
            "steps": {str(c): {str(m): t for m, t in steps.items()} for c, steps in a.costs.steps.items()},
            "plain": float(a.costs.step(1, a.costs.middle)),
            "slope": a.costs.slope,
        },
        "drafters": drafters,
        "ranking": [d["name"] for d in ranking],
        "winner": ranking[0]["name"] if pays else None,
        "samples": [_sample(llm, a, i) for i in range(min(_SAMPLES, len(a.truths)))],
        "measured": {},
    }


def _drafter(a: Analysis, arm: Arm, scores: Seq[Score]) -> dict[str, Any]:
    """Everything about one drafter."""
    every = {k: _replayed(a, scores, a.rule, k) for k in range(1, a.longest + 1)}
    speedups = {k: _speedup(a, arm, p) for k, p in every.items()}
    best = max(speedups, key=lambda k: speedups[k]["median"])
    alpha, offset = _joined(scores, "alpha"), a.costs.drafts[arm.draft]
    groups = {c: [i for i, t in enumerate(a.texts) if t.category == c] for c in dict.fromkeys(t.category for t in a.texts)}
    entropy = np.concatenate([t.entropy for t in a.truths])
    return {
        "name": arm.draft,
        "method": arm.method,
        "model": arm.model,
        "notes": arm.notes,
        **_laws(scores),
        "drafts_at": float(np.isfinite(alpha).mean()),
        "independent": _mean(_joined(scores, "independent")),
        "cost": a.costs.relative(arm.draft),
        "draft_seconds": {"each_step": offset[0], "each_draft": offset[1]},
        "tokens_per_pass": [_tokens(a, p) for p in every.values()],
        "speedup": list(speedups.values()),
        "best_k": best,
        "best_speedup": speedups[best],
        "rules": {rule: _tokens(a, _replayed(a, scores, rule, best)) for rule in RULES},
        "acceptance_per_position": _by_position(every[best], "visits"),
        "stands_when_drafted": _by_position(every[a.longest], "made"),
        "alpha_by_draft": _by_draft(scores),
        "temperatures": _temperatures(scores),
        "categories": {c: _part(a, arm, scores, every[best], own) for c, own in groups.items()},
        "entropy": [_bin(scores, entropy, i) for i in range(len(ENTROPIES))],
    }


def _replayed(a: Analysis, scores: Seq[Score], rule: str, k: int) -> list[Passes]:
    return [passes(s.stands[rule], s.lengths, t.limit, k) for s, t in zip(scores, a.texts, strict=False)]


def _tokens(a: Analysis, found: Seq[Passes]) -> float:
    """Tokens per pass over all texts."""
    return sum(len(p.visits) for p in found) / sum(p.count for p in found)


def _speedup(a: Analysis, arm: Arm, found: Seq[Passes], only: Seq[int] | None = None) -> dict[str, Any]:
    """Predicted speed-up of decoding, the pass that ends the prompt apart: plain time over speculative time, for as many tokens."""
    times: dict[str, list[float]] = {}
    for i, p in enumerate(found):
        text, count = a.texts[i], len(p.visits)
        if count < 2 or p.first > count - 0.5 or (only is not None and i not in only):
            continue
        context = len(text.prompt) + np.arange(1, count)
        steps = a.costs.step(1 + p.drafts[1:], context) + a.costs.draft(arm.draft, p.drafts[1:])
        own = times.setdefault(text.question, [0.0, 0.0])
        own[0] += float(a.costs.step(1, context).sum())
        own[1] += float((p.visits[1:] * steps).sum()) * (count - 1) / (count - p.first)
    ratio = pooled(list(times.values()))
    return ratio.as_dict() if ratio else {"median": 1.0, "low": None, "high": None, "questions": 0}


def _by_position(found: Seq[Passes], of: str) -> list[float]:
    """Conditional acceptance a_1..a_k: of the passes that kept j - 1 drafts, all, or those that made a j-th, how many kept j."""
    kept = np.sum([p.kept for p in found], axis=0)
    made = np.sum([p.reached for p in found], axis=0) if of == "made" else kept[:-1]
    return [float(k / m) for k, m in zip(kept[1:], made, strict=True) if m > 1e-9]


def _by_draft(scores: Seq[Score]) -> list[float]:
    """Mean alpha of each draft over all roots whose text goes on so far, given that the drafts before it are the text."""
    each = [s.by_draft for s in scores if s.by_draft is not None]
    if not each:
        return []
    whole = np.concatenate(each)
    return [float(v[known].mean()) for v in whole.T if (known := ~np.isnan(v)).any()]


def _joined(scores: Seq[Score], name: str) -> Array:
    return np.concatenate([getattr(s, name) for s in scores])


def _mean(values: Array) -> float | None:
    """Over the positions that have one; None where there is none, or where it is infinite."""
    known = values[~np.isnan(values)]
    found = float(known.mean()) if len(known) else None
    return None if found is None or not np.isfinite(found) else found


def _laws(scores: Seq[Score], chosen: Array | None = None) -> dict[str, Any]:
    """Distances between the laws, over all positions or some: those at which something is drafted count."""
    take = lambda name: _joined(scores, name)[slice(None) if chosen is None else chosen]  # noqa: E731
    alpha, forward = _mean(take("alpha")), take("forward")
    known = forward[~np.isnan(forward)]
    kl = _mean(forward)
    return {
        "positions": int(np.isfinite(take("alpha")).sum()),
        "alpha": alpha,
        "tv": None if alpha is None else 1 - alpha,
        "agreement": _mean(take("agrees")),
        "forward_kl": kl,
        "forward_kl_infinite": float(np.isinf(known).mean()) if len(known) else None,
        "reverse_kl": _mean(take("reverse")),
        "alpha_at_least": None if kl is None else max(alpha_bounds(kl)),
    }


def _temperatures(scores: Seq[Score]) -> dict[str, float]:
    """Mean alpha by draft temperature; nothing for drafters without a law, or where the target's is a point."""
    found: dict[float, list[float]] = {}
    for s in scores:
        for t, values in s.tuned.items():
            found.setdefault(t, []).extend(values)
    return {f"{t:g}": float(np.mean(v)) for t, v in found.items() if v}


def _part(a: Analysis, arm: Arm, scores: Seq[Score], found: Seq[Passes], own: Seq[int]) -> dict[str, Any]:
    """One category."""
    own = [i for i in own if i < len(found)]
    chosen = [scores[i] for i in own]
    if not chosen:
        return {}
    return {**_laws(chosen), "tokens_per_pass": _tokens(a, [found[i] for i in own]), "speedup": _speedup(a, arm, found, own)}


def _binned(entropy: Array) -> Array:
    return np.bincount(np.digitize(entropy, ENTROPIES) - 1, minlength=len(ENTROPIES))


def _bin(scores: Seq[Score], entropy: Array, i: int) -> dict[str, Any]:
    chosen = np.digitize(entropy, ENTROPIES) - 1 == i
    return {"from": ENTROPIES[i], **(_laws(scores, chosen) if chosen.any() else {"positions": 0, "alpha": None, "agreement": None})}


def _sample(llm: LLM, a: Analysis, i: int) -> dict[str, Any]:
    """The beginning of one text: for each token, and drafter, the chance that its draft there stands; None where there is none."""
    text = a.texts[i]
    tokens = text.answer[:_SAMPLE_TOKENS]
    tokenizer = llm.get_tokenizer()
    return {
        "question": text.question,
        "category": text.category,
        "tokens": [tokenizer.decode([t]) for t in tokens] if tokenizer else [str(t) for t in tokens],
        "entropy": [round(float(e), 3) for e in a.truths[i].entropy[: len(tokens)]],
        "alpha": {
            arm.draft: [None if np.isnan(x) else round(float(x), 3) for x in own[i].alpha[: len(tokens)]]
            for arm, own in zip(a.arms, a.scores, strict=True)
        },
    }


def compare(found: dict[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Put what was measured beside what was predicted, in place."""
    by_name = {d["name"]: d for d in found["drafters"]}
    for name, m in measured.items():
        predicted = by_name[name]["speedup"][m["k"] - 1]["median"]
        actual = m["speedup"]["median"] if m["speedup"] else None
        error = None if actual is None else predicted / actual - 1
        tokens = by_name[name]["tokens_per_pass"][m["k"] - 1]
        found["measured"][name] = {**m, "predicted_speedup": predicted, "error": error, "predicted_tokens_per_pass": tokens}
    order = [n for n in found["measured"] if found["measured"][n]["speedup"]]
    if len(order) > 1:
        ranks = [sorted(order, key=lambda n: -value(found["measured"][n])) for value in (_predicted, _measured)]
        found["same_order"] = ranks[0] == ranks[1]


def _predicted(m: Mapping[str, Any]) -> float:
    return float(m["predicted_speedup"])


def _measured(m: Mapping[str, Any]) -> float:
    return float(m["speedup"]["median"])
