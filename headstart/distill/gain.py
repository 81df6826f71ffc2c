"""What a finished draft is worth here: plain decoding and the draft in turns, on questions that it was never trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.bench import width
from headstart.bench.arms import make_arms
from headstart.bench.run import Plan, execute
from headstart.bench.summary import document
from headstart.bench.workload import Question
from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from headstart.distill.data import Text
from headstart.distill.prompts import user_turn

if TYPE_CHECKING:
    from headstart.api import LLM

_QUESTIONS = 6
_TOKENS = 64  # of an answer
_BEGIN = 8  # tokens of a text that stand for its question, where the target knows no turns


def measure(llm: LLM, draft: Path, k: int, held_out: Sequence[Text], stop: Callable[[], bool]) -> list[dict[str, Any]]:
    """For temperature 0 and 1: tokens per pass, acceptance by position, and the speed-up with up to k drafts, measured and predicted.

    speedup: the median over questions, what a user sees; None where it could not be measured. Raises ConfigError where no question fits.
    """
    spec = {"model": str(draft), "num_speculative_tokens": k, "adaptive": True}
    arms = make_arms(llm, [spec])
    params = SamplingParams(max_tokens=min(_TOKENS, llm.engine.target.max_len // 2))
    asked = questions(llm, held_out)
    if not asked:
        raise ConfigError("no held-out text shows what was asked: measure with headstart bench")
    plan = Plan(asked, params, temperatures=(0.0, 1.0))
    widths = {1: width.measure(llm, range(1, k + 2), stop=stop)}
    found = document(llm, execute(llm, arms, plan, lambda _: None, stop), "held-out questions", widths, [])
    return [_figures(r["temperature"], r["overall"]) for r in found["results"] if r["arm"] == arms[1].name]


def _figures(temperature: float, overall: dict[str, Any]) -> dict[str, Any]:
    speedup = overall["speedup"]
    return {
        "temperature": temperature,
        "tokens_per_pass": overall["tokens_per_pass"],
        "acceptance_per_position": overall["acceptance_per_position"],
        "speedup": None if speedup is None else speedup["median"],
        "predicted_speedup": overall.get("predicted_speedup"),
    }


def questions(llm: LLM, texts: Sequence[Text]) -> list[Question]:
    """What some of the texts were asked, as a user would ask it."""
    tokenizer = llm.get_tokenizer()
    turn = user_turn(tokenizer) if getattr(tokenizer, "chat_template", None) else None
    out: dict[str, Question] = {}
    for text in texts:
        if turn is None:
            asked = tokenizer.decode(text.tokens[: max(text.start, _BEGIN)])
        else:
            asked = tokenizer.decode(text.tokens).partition(turn[0])[2].partition(turn[1])[0]
        if asked.strip() and len(out) < _QUESTIONS:
            out.setdefault(asked, Question(f"text {text.number}", "held out", (asked,)))
    return list(out.values())
