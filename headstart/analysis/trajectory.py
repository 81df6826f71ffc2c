"""What the target writes: the texts on which drafts are judged, generated here or given by the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.api import LLM
from headstart.bench.arms import plain_arm
from headstart.bench.run import Plan, encode, execute, question_seed
from headstart.core.errors import ConfigError
from headstart.runtime.tokenizer import continuation

_SHAPE = '{"prompt": "...", "answer": "...", "category": "..."}'


@dataclass(frozen=True)
class Trajectory:
    """A prompt and what the target wrote after it; `limit`: tokens it was allowed to write; `seed`: of its sampling."""

    question: str
    category: str
    prompt: list[int]
    answer: list[int]
    limit: int
    seed: int = 0


def generate(llm: LLM, plan: Plan, advance: Callable[[int], None], stop: Callable[[], bool]) -> tuple[list[Trajectory], bool]:
    """Plain answers to the questions of a plan, and whether `stop()` ended it early. Raises as `execute`."""
    run = execute(llm, [plain_arm()], replace(plan, warmup=0, repeats=1), advance, stop)
    found = {}
    for group in run.groups:
        for a in group.answers:
            if a.token_ids:
                limit = plan.params.max_tokens or len(a.token_ids)
                seed = question_seed(plan, group.repeat, a)
                found[a.question.id, a.turn] = Trajectory(a.question.id, a.question.category, a.prompt_ids, a.token_ids, limit, seed)
    return list(found.values()), run.interrupted


def load(llm: LLM, path: str, limit: int | None, max_tokens: int) -> list[Trajectory]:
    """Answers that somebody has: JSON lines of prompt, answer and perhaps a category. Raises ConfigError."""
    out = []
    for n, item in enumerate(_lines(path), 1):
        prompt = encode(llm, [{"role": "user", "content": item["prompt"]}])
        answer = continuation(llm.get_tokenizer(), item["answer"])[:max_tokens]
        if answer and len(prompt) + len(answer) < llm.engine.target.max_len:
            out.append(Trajectory(str(item.get("id", n)), str(item.get("category") or "all"), prompt, answer, len(answer)))
        if limit is not None and len(out) == limit:
            break
    if not out:
        raise ConfigError(f"--answers {path} holds no answer that fits into the context: write JSON lines, {_SHAPE}")
    return out


def _lines(path: str) -> Iterator[dict[str, Any]]:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"--answers {path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"--answers {path} is not UTF-8 text ({e.reason} at byte {e.start})") from None
    for n, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("prompt", "answer")):
            raise ConfigError(f"--answers {path}, line {n} must be {_SHAPE}")
        yield item


def contexts(trajectories: Seq[Trajectory]) -> tuple[int, int]:
    """The shortest and the longest text at which a token was chosen: between them costs are measured."""
    return min(len(t.prompt) for t in trajectories), max(len(t.prompt) + len(t.answer) for t in trajectories)
