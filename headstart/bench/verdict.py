"""The verdict: whether drafts changed the output. Greedy and `match` answers are compared token by token, sampling by its law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headstart.api import LLM
from headstart.bench.arms import Arm
from headstart.bench.run import Answer, Run, pairs
from headstart.bench.stats import same_law
from headstart.core.outputs import SpeculativeStats
from headstart.core.params import SamplingParams
from headstart.runtime.runner import Feed

# A lossless arm is wrongly accused this often. Small, because an exit code hangs on it.
LEVEL = 0.001
JOINT = 3  # tokens of the joint law
# Ends within a repetition, so that lookup drafts from the first token on; given as it is, since a template would end it.
LAW_PROMPT = "one two three one two three one two three one two"


@dataclass
class Verdict:
    """Of one arm at one batch size and temperature. `kind`: "tokens" or "law". Details are for the report."""

    arm: str
    batch: int
    temperature: float
    kind: str
    passed: bool
    words: str
    details: dict[str, Any]


def judge_tokens(llm: LLM, run: Run, arm: Arm, batch: int, temperature: float) -> Verdict:
    """Every answer against plain decoding's; the first difference with what the target's logits say there."""
    both = list(pairs(run, arm.name, batch, temperature))
    # An answer after a different one had another prompt: it is a consequence, no further difference.
    same_prompt = [(p, a) for p, a in both if p.prompt_ids == a.prompt_ids]
    differ = [(p, a) for p, a in same_prompt if p.token_ids != a.token_ids]
    details: dict[str, Any] = {
        "answers": len(same_prompt),
        "tokens": sum(len(p.token_ids) for p, _ in same_prompt),
        "different": len(differ),
        "not_compared": len(both) - len(same_prompt),
    }
    if not differ:
        words = f"identical: {len(same_prompt)} answers, {details['tokens']} tokens"
        return Verdict(arm.name, batch, temperature, "tokens", True, words, details)
    first = details["first_difference"] = first_difference(llm, *differ[0])
    words = (
        f"DIFFERENT: {len(differ)} of {len(same_prompt)} answers; first {first['question']!r} turn {first['turn'] + 1}, token "
        f"{first['index']}: {first['plain']!r} without drafts, {first['speculative']!r} with"
    )
    if first["gap"] is not None:
        words += f", logits {first['gap']:.2g} apart"
    return Verdict(arm.name, batch, temperature, "tokens", False, words, details)


def first_difference(llm: LLM, plain: Answer, other: Answer) -> dict[str, Any]:
    """Where two answers part, and how far apart the two tokens' logits are in a pass over the common beginning."""
    a, b = plain.token_ids, other.token_ids
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    left, right = (ids[at] if at < len(ids) else None for ids in (a, b))
    gap = None
    if left is not None and right is not None and llm.config.backend == "native":
        logits = _logits(llm, plain.prompt_ids + a[:at])
        gap = float(logits[left] - logits[right])
    text = lambda t: "the end" if t is None else llm.get_tokenizer().decode([t])  # noqa: E731
    return {
        "question": plain.question.id,
        "turn": plain.turn,
        "index": at,
        "plain": text(left),
        "speculative": text(right),
        "plain_id": left,
        "speculative_id": right,
        "gap": gap,
    }


def _logits(llm: LLM, tokens: list[int]) -> Any:
    """The target's logits [V] after these tokens, from one pass; the engine must be idle."""
    llm.engine.pool.forget()
    table = list(range(-(-len(tokens) // llm.engine.pool.block_size)))
    return llm.engine.target.forward([Feed(tokens, 0, table, 1)])[0][0]


def judge_law(llm: LLM, plain: Arm, arm: Arm, params: SamplingParams, batch: int, samples: int, stop: Callable[[], bool]) -> Verdict | None:
    """Many short samples of one prompt without and with drafts, and whether the joint law of their tokens may be one.

    None when `stop()` ended it.
    """
    ids = list(llm.get_tokenizer()(LAW_PROMPT).input_ids)
    drawn = {}
    stats = SpeculativeStats()
    for number, each in enumerate((plain, arm)):
        llm.engine.use(each.drafter, each.k, each.verify, each.pace)
        drawn[each.name], own = _sample(llm, ids, replace(params, max_tokens=JOINT, ignore_eos=True, seed=None), samples, number, stop)
        stats = SpeculativeStats.total((stats, own))
    if stop():
        return None
    return law_verdict(arm, batch, params.temperature, drawn[plain.name], drawn[arm.name], stats, samples, params.seed or 0)


def law_verdict(
    arm: Arm,
    batch: int,
    temperature: float,
    plain: list[tuple[int, ...]],
    drawn: list[tuple[int, ...]],
    stats: SpeculativeStats,
    samples: int,
    seed: int,
) -> Verdict:
    """Whether samples without and with drafts may be of one law; `stats`: of the drafts that were judged meanwhile."""
    p = same_law(plain, drawn, seed=seed)
    rejected = stats.num_draft_tokens - stats.num_accepted_draft_tokens
    details = {"p_value": p, "samples": samples, "tokens": JOINT, "drafted": stats.num_draft_tokens, "rejected": rejected}
    words = f"joint law of {JOINT} tokens, {samples} samples each: p = {p:.3g}"
    if p < LEVEL:
        words = f"ANOTHER LAW: {words}"
    elif not stats.num_draft_tokens:
        words = f"not tested, nothing was drafted: {words}"
    return Verdict(arm.name, batch, temperature, "law", p >= LEVEL, words, details)


def _sample(
    llm: LLM, ids: list[int], params: SamplingParams, samples: int, number: int, stop: Callable[[], bool]
) -> tuple[list[tuple[int, ...]], SpeculativeStats]:
    """`samples` independent completions; the two arms get different seeds, since equal ones would hide a difference."""
    out: list[tuple[int, ...]] = []
    stats: list[SpeculativeStats] = []
    while len(out) < samples and not stop():
        n = min(samples - len(out), 256)
        request = llm.engine.add(f"law-{number}-{len(out)}", None, ids, replace(params, n=n, seed=1 + number + 2 * len(out)))
        while not request.finished:
            if stop():
                llm.engine.abort(request.id)
                break
            llm.engine.step()
        out += [tuple(c.seq.output) for c in request.completions]
        stats += [c.stats for c in request.completions]
    return out, SpeculativeStats.total(stats)
