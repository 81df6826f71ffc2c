"""What the kernels reach on this machine, every figure as a ratio that was measured in one run.

    python benchmarks/kernels.py [--model M] [--rounds 5] [--only decode,widths,prompt,perplexity]

decode: plain greedy decoding, 128 tokens through the engine, over what reading all weights once per token allows at the bandwidth
measured for a working set of that size. widths: passes of 8 and 16 rows over one row. prompt: 1,000 tokens, over torch's best.
perplexity: of the documents of this repository. Run it on a quiet machine; docs/kernels.md has what it printed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from headstart import LLM, SamplingParams
from headstart.kernels import library
from headstart.kernels.measure import read_bandwidth
from headstart.models.demo import demo_model
from headstart.runtime.runner import Feed

KINDS = {
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
WIDTHS = (1, 2, 4, 8, 16, 32)
NEW = 128
TEXTS = ("docs/tour.md", "docs/lossless.md", "docs/options.md")


def load(model: str, **arguments: Any) -> LLM:
    return LLM(model, max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=2048, enable_prefix_caching=False, **arguments)


def timed(f: Any, rounds: int) -> float:
    """Median seconds, after one call that warms up."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        f()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def per_token(llm: LLM, prompt: int, rounds: int) -> float:
    """Seconds per token of plain decoding after a prompt of so many tokens, the prompt itself left out."""
    ids = [1000 + 7 * i % 5000 for i in range(prompt)]
    seconds = []
    for _ in range(rounds):
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
        m = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].metrics
        seconds.append((m.finished_time - m.first_token_time) / (NEW - 1))  # type: ignore[operator]
    return statistics.median(seconds)


def decode(llms: dict[str, LLM], rounds: int) -> None:
    base = 0.0
    for kind, llm in llms.items():
        size = llm.engine.target.model.weight_bytes
        bandwidth = read_bandwidth(size)
        limit = size / bandwidth
        for prompt in (64, 1000):
            took = per_token(llm, prompt, rounds)
            base = took if kind == "bf16" and prompt == 64 else base
            beside = f", {base / took:.2f} x bf16" if prompt == 64 and base else ""
            print(
                f"decode {kind} after {prompt:>4} tokens: {1 / took:6.1f} tokens/s, {took * 1e3:6.2f} ms a token; "
                f"{size / 1e6:.0f} MB at {bandwidth / 1e9:.1f} GB/s is {limit * 1e3:.2f} ms: {limit / took:.2f} of the limit{beside}"
            )


def widths(llms: dict[str, LLM], rounds: int) -> None:
    for kind, llm in llms.items():
        target, table = llm.engine.target, list(range(20))
        llm.engine.pool.forget()
        target.forward([Feed([1] * 64, 0, table, 0)])
        took: dict[int, list[float]] = {m: [] for m in WIDTHS}
        for _ in range(3 * rounds):
            for m in WIDTHS:
                start = time.perf_counter()
                target.forward([Feed([5] * m, 64, table, m)])
                took[m].append(time.perf_counter() - start)
        curve = {m: statistics.median(t) for m, t in took.items()}
        print(f"widths {kind}: " + ", ".join(f"{m} rows {1e3 * s:.1f} ms ({s / curve[1]:.2f})" for m, s in curve.items()))
        for batch in (8, 32):
            print(f"widths {kind}: a batch of {batch} gives {batch * curve[1] / curve[batch]:.1f} times the tokens of one")


def prompt(llms: dict[str, LLM], model: str, rounds: int) -> None:
    feed = [Feed([1000 + 7 * i % 5000 for i in range(1000)], 0, list(range(63)), 1)]
    took = {kind: timed(lambda llm=llm: llm.engine.target.forward(feed), rounds) for kind, llm in llms.items()}
    asked = os.environ.get(library.VARIABLE)
    os.environ[library.VARIABLE] = "torch"
    best = min(
        timed(lambda llm=llm: llm.engine.target.forward(feed), rounds) for llm in (load(model, dtype=d) for d in ("float32", "bfloat16"))
    )
    os.environ[library.VARIABLE] = asked or ""
    for kind, seconds in took.items():
        print(f"prompt {kind}: 1000 tokens in {seconds:.2f} s, {best / seconds:.2f} of torch's best ({best:.2f} s)")


def perplexity(llms: dict[str, LLM]) -> None:
    folder = Path(__file__).parents[1]
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in TEXTS)
    for kind, llm in llms.items():
        ids = llm.get_tokenizer()(text).input_ids[:2000]
        table, total = list(range(125)), 0.0
        for at in range(0, len(ids) - 1, 500):
            piece = ids[at : min(at + 500, len(ids) - 1)]
            (logits,) = llm.engine.target.forward([Feed(piece, at, table, len(piece))])
            wanted = torch.tensor(ids[at + 1 : at + 1 + len(piece)])
            total -= float(logits.log_softmax(-1).gather(1, wanted[:, None]).double().sum())
        print(f"perplexity {kind}: {math.exp(total / (len(ids) - 1)):.3f} over {len(ids) - 1} tokens of docs/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="decode,widths,prompt,perplexity")
    args = parser.parse_args()
    model, only = args.model or str(demo_model()), args.only.split(",")
    serves = library.active()
    print(f"path {serves.path} ({serves.why}), {torch.get_num_threads()} threads, {Path(model).name}")
    llms = {kind: load(model, **arguments) for kind, arguments in KINDS.items()}
    if "decode" in only:
        decode(llms, args.rounds)
    if "widths" in only:
        widths(llms, args.rounds)
    if "prompt" in only:
        prompt(llms, model, max(1, args.rounds // 2))
    if "perplexity" in only:
        perplexity(llms)


if __name__ == "__main__":
    main()
