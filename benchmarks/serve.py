"""Throughput of a real server under 1, 4 and 16 concurrent streams of the openai client: plain and speculative in turns, in one run.

    python benchmarks/serve.py                                   # the demo model with ngram
    python benchmarks/serve.py --model M --draft D --streams 1 8

Both arms are the same server and the same greedy requests; the plain one sends `num_speculative_tokens: 0`. Exit code 1 when texts differ.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.served import DEMO, served
from headstart.bench.workload import load

ARMS = {"plain": {"num_speculative_tokens": 0}, "speculative": {}}


@dataclass
class Answer:
    """One stream: its text, tokens, and when its first and last tokens came, in seconds after it was sent."""

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    passes: int = 0


@dataclass
class Round:
    """One arm once through the questions, with so many streams at a time."""

    seconds: float = 0.0
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per second of all streams together."""
        return sum(a.tokens for a in self.answers.values()) / self.seconds


async def ask(client: openai.AsyncOpenAI, model: str, question: str, tokens: int, extra: dict[str, int]) -> Answer:
    """One stream to its end."""
    out, start = Answer(), time.perf_counter()
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            out.first = out.first or time.perf_counter() - start
            out.last = time.perf_counter() - start
            out.text += chunk.choices[0].delta.content
        if chunk.usage:
            out.tokens = chunk.usage.completion_tokens
            out.passes = (chunk.model_extra or {})["metrics"]["num_passes"]
    return out


async def go(client: openai.AsyncOpenAI, model: str, questions: list[str], tokens: int, streams: int, extra: dict[str, int]) -> Round:
    """All questions, so many at a time."""
    out, left, start = Round(), list(questions), time.perf_counter()

    async def worker() -> None:
        while left:
            question = left.pop(0)
            out.answers[question] = await ask(client, model, question, tokens, extra)

    await asyncio.gather(*(worker() for _ in range(streams)))
    out.seconds = time.perf_counter() - start
    return out


def line(streams: int, arm: str, rounds: list[Round], ratio: str) -> str:
    """A row of the table: medians over rounds and answers."""
    answers = [a for r in rounds for a in r.answers.values()]
    gaps = [(a.last - a.first) / (a.tokens - 1) for a in answers if a.tokens > 1]
    per_pass = sum(a.tokens for a in answers) / sum(a.passes for a in answers)
    figures = (
        f"{statistics.median(r.rate for r in rounds):.1f}",
        f"{1e3 * statistics.median(a.first for a in answers):.0f} ms",
        f"{1e3 * statistics.median(gaps):.1f} ms",
        f"{per_pass:.2f}",
        ratio,
    )
    return f"| {streams} | {arm} | {' | '.join(figures)} |"


async def measure(url: str, args: argparse.Namespace) -> bool:
    """Print the table; whether all texts were the same."""
    questions = [q.turns[0] for q in load(args.data, max(args.streams))]
    same = True
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        await go(client, model, questions[:2], 16, 2, {})
        print("| streams | | tok/s, all streams | first token | per token | tokens per pass | |\n|---|---|---|---|---|---|---|")
        for streams in args.streams:
            rounds: dict[str, list[Round]] = {arm: [] for arm in ARMS}
            chosen = questions[: max(streams, args.least)]
            for i in range(args.rounds):
                for arm in list(ARMS) if i % 2 == 0 else reversed(ARMS):
                    rounds[arm].append(await go(client, model, chosen, args.tokens, streams, ARMS[arm]))
            same &= all(r.answers[q].text == rounds["plain"][0].answers[q].text for runs in rounds.values() for r in runs for q in chosen)
            ratios = [fast.rate / slow.rate for fast, slow in zip(rounds["speculative"], rounds["plain"], strict=True)]
            for arm in ARMS:
                print(line(streams, arm, rounds[arm], "" if arm == "plain" else f"x {statistics.median(ratios):.2f}"), flush=True)
    print("every text is the same in both arms" if same else "TEXTS DIFFER")
    return same


def main() -> int:
    """Run, print, and say by the exit code whether the texts were the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--least", type=int, default=4, help="questions of a round, at least")
    parser.add_argument("--data", help="a .jsonl file of questions; default: the built-in ones")
    args = parser.parse_args()
    with served(
        str(Path(args.model).expanduser()) if "/" in args.model else args.model, "--draft", args.draft, "--max-model-len", "2048"
    ) as url:
        return 0 if asyncio.run(measure(url, args)) else 1


if __name__ == "__main__":
    sys.exit(main())
