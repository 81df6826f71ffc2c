"""What the kernels reach on this machine, every figure as a ratio that was measured in one run.

    python benchmarks/kernel_speed.py [--model M] [--rounds 5] [--only decode,widths,steps,choices,prompt]

decode: plain greedy decoding, 128 tokens through the engine, over what reading all weights once per token allows at the bandwidth
measured for a working set of that size. widths: passes of 8 and 16 rows over one row. steps: what a step of the engine takes beside its
pass, and the pass beside its products. choices: the tokens of a batch from their logits, torch beside the kernels, and out of
the cache. prompt: 1,000 tokens in passes of 512, over the best of torch alone, in float32 and in bfloat16, in one pass. Run it on a quiet
machine; docs/kernels.md has what it printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headstart  # noqa: F401 - before torch: says how its threads wait

# isort: split
import torch

from headstart import LLM, SamplingParams
from headstart.core.types import Proposal, Sequence
from headstart.kernels import library
from headstart.kernels.measure import read_bandwidth
from headstart.models.demo import demo_model
from headstart.ops.sampling import law
from headstart.ops.verify import Step, verify_batch
from headstart.runtime.runner import Feed

KINDS = {
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
WIDTHS = (1, 2, 4, 8, 16, 32)
NEW = 128
CHUNK = 512


def load(model: str, **arguments: Any) -> LLM:
    return LLM(model, max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=2048, enable_prefix_caching=False, **arguments)


def timed(f: Any, rounds: int, before: Any = lambda: None) -> float:
    """Median seconds, after one call that warms up; `before` is called before each and takes no part."""
    seconds = []
    for _ in range(rounds + 1):
        before()
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


@contextmanager
def torch_alone() -> Iterator[None]:
    """Without the kernels."""
    asked = os.environ.get(library.VARIABLE, "")
    os.environ[library.VARIABLE] = "torch"
    try:
        yield
    finally:
        os.environ[library.VARIABLE] = asked


@contextmanager
def kernel_seconds() -> Iterator[Counter[str]]:
    """The seconds that are spent in each function of the kernels meanwhile."""
    seconds: Counter[str] = Counter()
    call = library.Active.call

    def timed_call(by: library.Active, function: str, *arguments: Any) -> None:
        start = time.perf_counter()
        call(by, function, *arguments)
        seconds[function] += time.perf_counter() - start

    library.Active.call = timed_call  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        library.Active.call = call  # type: ignore[method-assign]


def products(model: Any, rounds: int) -> float:
    """Seconds that the products of a pass of one row take by themselves, one call each."""
    weights = [w for b in model.layers for w in (b.qkv, b.out, b.gate_up, b.down)] + [model.head]
    places = [(w.struct, torch.randn(w.shape[1]), torch.empty(w.shape[0])) for w in weights]
    by = library.active()

    def all_of_them() -> None:
        for weight, x, out in places:
            by.call("product", weight, x.data_ptr(), 1, out.data_ptr())

    return timed(all_of_them, 5 * rounds)


def steps(llms: dict[str, LLM], rounds: int) -> None:
    for kind, llm in llms.items():
        engine, beside = llm.engine, 1e3 * products(llm.engine.target.model, rounds)
        for batch, temperature in ((1, 0), (1, 1), (32, 1)):
            for i in range(batch):
                params = SamplingParams(temperature=temperature, max_tokens=1000, ignore_eos=True)
                engine.add(str(i), None, [1000 + (7 * j + i) % 5000 for j in range(64)], params)
            while any(len(s.tokens) == s.prompt_len for s in engine.scheduler.running) or engine.scheduler.waiting:
                engine.step()
            count = max(rounds, 20 * rounds // batch)
            with kernel_seconds() as seconds:
                start = time.perf_counter()
                for _ in range(count):
                    engine.step()
                took = 1e3 * (time.perf_counter() - start) / count
            for i in range(batch):
                engine.abort(str(i))
            within = 1e3 * seconds["decode"] / count
            choosing = 1e3 * seconds["choose"] / count
            print(
                f"steps {kind}, {batch} sequences, temperature {temperature}: {took:.2f} ms, of which the pass {within:.2f}, "
                f"choosing tokens {choosing:.2f} ({choosing / took:.1%}), Python {took - within - choosing:.2f} "
                f"({1 - (within + choosing) / took:.1%})" + (f"; products alone {beside:.2f}" if batch == 1 else "")
            )


def choices(vocab: int, rounds: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, greedy, sampled = torch.randn(32, vocab, generator=generator) * 3, SamplingParams(temperature=0), SamplingParams()
    drafts = rows[:5].argmax(-1).tolist()
    with torch_alone():
        q = law(rows[8:13], sampled)

    def seq(params: SamplingParams, rule: str = "rejection") -> Sequence:
        return Sequence(0, "r", 0, params, [0] * 9, 9, 1, rule)

    cases: dict[str, list[Step]] = {
        "one row, temperature 1": [(rows[:1], Proposal(), seq(sampled))],
        "32 rows of as many sequences, temperature 1": [(row, Proposal(), seq(sampled)) for row in rows.split(1)],
        "32 rows, greedy": [(row, Proposal(), seq(greedy)) for row in rows.split(1)],
        "6 rows and 5 drafts, greedy": [(rows[:6], Proposal(drafts), seq(greedy))],
        "the same, temperature 1, drafts looked up": [(rows[:6], Proposal(drafts), seq(sampled))],
        "the same, a model's drafts, rejection": [(rows[:6], Proposal(drafts, q), seq(sampled))],
        "the same, block": [(rows[:6], Proposal(drafts, q), seq(sampled, "block"))],
    }
    print(f"choices, vocabulary {vocab}, milliseconds: torch, kernels")
    for name, asked in cases.items():
        ours = 1e3 * timed(lambda asked=asked: verify_batch(asked), 10 * rounds)
        with torch_alone():
            torchs = 1e3 * timed(lambda asked=asked: verify_batch(asked), 2 * rounds)
        print(f"choices, {name}: {torchs:.2f}, {ours:.2f}")
    swept = torch.ones(64 << 20)  # 256 MB: more than caches hold
    cold = 1e3 * timed(lambda: verify_batch(cases["the same, block"]), 10 * rounds, swept.sum)
    print(f"choices, the same, where logits and laws have left the cache: kernels {cold:.2f}")


def prompt(llms: dict[str, LLM], model: str, rounds: int) -> None:
    ids, table = [1000 + 7 * i % 5000 for i in range(1000)], list(range(63))

    def read(llm: LLM, chunk: int) -> None:
        for at in range(0, len(ids), chunk):
            piece = ids[at : at + chunk]
            llm.engine.target.forward([Feed(piece, at, table, int(at + len(piece) == len(ids)))])

    took = {kind: timed(lambda llm=llm: read(llm, CHUNK), rounds) for kind, llm in llms.items()}
    torchs = {}
    with torch_alone():
        for dtype in ("float32", "bfloat16"):
            llm = load(model, dtype=dtype)
            torchs[dtype] = timed(lambda llm=llm: read(llm, len(ids)), rounds)
    best = min(torchs, key=lambda dtype: torchs[dtype])
    for kind, seconds in took.items():
        print(
            f"prompt {kind}: 1000 tokens in {seconds:.2f} s, {torchs[best] / seconds:.2f} of torch's best ({torchs[best]:.2f} s in {best})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="decode,widths,steps,choices,prompt")
    args = parser.parse_args()
    model, only = args.model or str(demo_model()), args.only.split(",")
    serves = library.active()
    print(f"path {serves.path} ({serves.why}), {torch.get_num_threads()} threads, {Path(model).name}")
    llms = {kind: load(model, **arguments) for kind, arguments in KINDS.items()}
    if "decode" in only:
        decode(llms, args.rounds)
    if "widths" in only:
        widths(llms, args.rounds)
    if "steps" in only:
        steps(llms, args.rounds)
    if "choices" in only:
        choices(llms["bf16"].engine.target.vocab, args.rounds)
    if "prompt" in only:
        prompt(llms, model, max(1, args.rounds // 2))


if __name__ == "__main__":
    main()
