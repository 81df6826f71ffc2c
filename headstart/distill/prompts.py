"""What the target is asked: prompts from files, or user turns that it writes itself; and the questions it must not be asked.

A draft that has seen the questions it is judged by measures nothing, so every prompt is compared with those of `--exclude`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from headstart.bench.workload import Question, load
from headstart.core import rand

# How user turns may begin: left to itself, a model asks for much the same things again and again. Every other turn begins freely.
OPENERS = (
    "Write a", "Explain", "What is", "How do I", "Summarize the following text:\n\n", "Who was", "Give me", "Translate into English:",
    "A train", "Why", "Read the passage and answer the question.\n\nPassage:", "Compare", "If", "When did", "Solve", "Rewrite",
    "def ", "Describe", "Create a", "List", "Imagine", "Calculate", "What are the", "Can you", "Where is", "In the article below,",
    "Übersetze", "Qu'est-ce que", "¿Cómo", "Write a Python", "Tom has", "Summarize this news article: ", "Let", "Which", "Is it",
    "You are", "Design", "Tell me", "How many", "Based on the following context, answer the question.\n\nContext:",
)  # fmt: skip
_MARK = "\x00"


def read(files: Sequence[str], excluded: frozenset[str]) -> tuple[list[str], int]:
    """The first user turn of every entry of the files, each once, and how many were refused as excluded. Raises ConfigError.

    A line is "prompt", "turns" or "conversations", as `headstart bench --data` takes it: the answers there are not used, the
    target answers for itself.
    """
    prompts: dict[str, str] = {}
    refused = 0
    for name in files:
        for question in load(name, option="--prompts"):
            key = digest(question.turns[0])
            if key in excluded:
                refused += 1
            else:
                prompts.setdefault(key, question.turns[0])
    return list(prompts.values()), refused


def exclusions(files: Sequence[str]) -> frozenset[str]:
    """The digests of every turn of the questions in these files. Raises ConfigError."""
    questions: Iterable[Question] = (q for name in files for q in load(name, option="--exclude"))
    return frozenset(digest(turn) for q in questions for turn in q.turns)


def digest(text: str) -> str:
    """A hash of the words of a text: neither case nor punctuation nor spacing makes it another question."""
    return hashlib.sha256(" ".join(re.findall(r"\w+", text.casefold())).encode()).hexdigest()


def opener(seed: int, number: int) -> str:
    """How the user turn of this number begins."""
    at = rand.key(seed, number) % (2 * len(OPENERS))
    return OPENERS[at] if at < len(OPENERS) else ""


def user_turn(tokenizer: Any) -> tuple[str, str] | None:
    """What stands before a user turn in the chat template, and what ends it; None where the template does not show it."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
    before, mark, after = text.partition(_MARK)
    end = after.strip().split("\n")[0]
    return (before, end) if mark and end else None
