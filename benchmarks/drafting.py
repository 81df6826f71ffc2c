"""What drafters give and cost in the real engine: one loaded target, plain decoding and drafts in turns.

    python benchmarks/drafting.py floor [--batch 1,8,32] [--tokens 48]     text in which nothing repeats: drafts must cost nothing
    python benchmarks/drafting.py rewrite [--tokens 400]                   a file rewritten, its old text as prediction
    python benchmarks/drafting.py alpha [--dithered] [--tokens 48]         acceptance of the target's own weights in 8 and 4 bits
    python benchmarks/drafting.py ahead [--kinds int8] [--tokens 96]       what it saves a drafting model to read ahead

`floor` takes prompts of random ids and goes on with them, at temperature 0 and 1, with each of `--drafts`; it prints the speed over
that of plain decoding in the same run. `rewrite` lets the target copy a file by logits that a processor bends towards its edited
text, since no small model rewrites 300 lines by itself: passes, drafts and their times are the engine's own. `alpha` answers
questions in a batch; with --dithered every weight is first moved at random by up to half a step of its 4-bit grid, because the
demo model was stored on one. `ahead` answers questions one by one in bfloat16, with the target's own weights drafting four tokens a
step: plain, without and with what the text suggests fed along. Uses the demo model, or --model.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import headstart  # noqa: F401 - before torch: says how its threads wait

# isort: split
import torch
from lookup import OLD_FILES, edited

from headstart import LLM, SamplingParams
from headstart.bench.arms import Arm, make_arms
from headstart.bench.workload import load
from headstart.models.demo import demo_model

GROUP = 32


def decode(llm: LLM, arm: Arm, prompts: list[Any], params: SamplingParams) -> tuple[float, list[Any]]:
    """(tokens per second of decoding, outputs) of an arm; prefill apart."""
    engine = llm.engine
    engine.use(arm.drafter, arm.k, arm.verify, arm.pace)
    requests = [engine.add(f"{i}", None, list(p), params) for i, p in enumerate(prompts)]
    while any(len(s.tokens) == s.prompt_len for s in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    before, made = engine.clock.read(), sum(c.seq.produced for r in requests for c in r.completions)
    while engine.has_work:
        engine.step()
    after = engine.clock.read()
    seconds = sum(after[part] - before[part] for part in ("draft", "target", "verify", "other"))
    tokens = sum(c.seq.produced for r in requests for c in r.completions) - made
    return tokens / seconds, [r.output() for r in requests]


def floor(args: argparse.Namespace) -> None:
    llm = LLM(args.model, dtype="float32", max_model_len=1024, max_num_seqs=32, kv_cache_memory="3GiB", enable_prefix_caching=False)
    specs = [spec(d) for d in args.drafts]
    rng, vocab = random.Random(1), llm.engine.target.vocab
    for batch in args.batch:
        prompts = [[rng.randrange(vocab) for _ in range(64)] for _ in range(batch)]
        for temperature in args.temperature:
            params = SamplingParams(temperature=temperature, max_tokens=args.tokens, ignore_eos=True, seed=1)
            arms = make_arms(llm, specs)  # a pace that has learned nothing yet
            speeds: dict[str, list[float]] = {arm.name: [] for arm in arms}
            for round_ in range(args.rounds):
                for arm in arms[:: 1 - 2 * (round_ % 2)]:  # there and back, so that nobody always comes first
                    got, outputs = decode(llm, arm, prompts, params)
                    speeds[arm.name].append(got)
                    drafted = sum(o.metrics.speculative_decoding.num_draft_tokens for o in outputs)
                    print(f"  {arm.name:24} {got:8.1f} tokens/s, {drafted} drafts", file=sys.stderr)
            plain = speeds["plain"]
            for arm in arms[1:]:
                ratios = sorted(a / b for a, b in zip(speeds[arm.name], plain, strict=True))
                shown = " ".join(f"{r:.3f}" for r in ratios)
                print(
                    f"batch {batch:2}, T = {temperature:g}, {arm.name:24} {ratios[len(ratios) // 2]:.3f} times plain ({shown})", flush=True
                )


def spec(draft: str) -> dict[str, Any]:
    """A speculative_config of one `--drafts`; several joined by + are a hybrid."""
    several = draft.split("+")
    return {"method": "hybrid", "drafters": several} if len(several) > 1 else {"method": draft} if "/" not in draft else {"model": draft}


class Rewriter:
    """A logits processor that makes the target write a given text: what comes next in it is far the likeliest."""

    def __init__(self, start: int, wanted: list[int]) -> None:
        self.start, self.wanted = start, wanted

    def __call__(self, tokens: list[int], row: torch.Tensor) -> torch.Tensor:
        at = len(tokens) - self.start
        if at < len(self.wanted):
            row[self.wanted[at]] += 1e3
        return row


def rewrite(args: argparse.Namespace) -> None:
    llm = LLM(args.model, dtype="float32", max_model_len=8192, kv_cache_memory="2GiB", enable_prefix_caching=False)
    tokenizer = llm.get_tokenizer()
    old = "".join(path.read_text() for path in OLD_FILES)
    new = tokenizer(edited(old, 0.05), add_special_tokens=False).input_ids[: args.tokens]
    prompt = tokenizer("Rename chunk to piece in this file.\n", add_special_tokens=False).input_ids
    params = SamplingParams(temperature=0, max_tokens=len(new), ignore_eos=True, logits_processors=[Rewriter(len(prompt), new)])
    plain, predicted = make_arms(llm, [{"method": "prediction"}])
    decode(llm, plain, [prompt], replace(params, max_tokens=8))
    slow, outputs = decode(llm, plain, [prompt], params)
    fast, again = decode(llm, predicted, [prompt], replace(params, prediction=old))
    m, same = again[0].metrics, again[0].outputs[0].token_ids == outputs[0].outputs[0].token_ids == new
    print(f"{len(new)} tokens of a file of {old.count(chr(10))} lines, 5 % of them edited and a word renamed: {m.num_passes} passes, "
          f"{len(new) / m.num_passes:.2f} tokens per pass, {m.accepted_prediction_tokens} of the prediction accepted, "
          f"{m.rejected_prediction_tokens} rejected, {fast / slow:.2f} times plain, identical: {same}")  # fmt: skip


def alpha(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = dithered(args.model, Path(folder)) if args.dithered else args.model
        llm = LLM(model, dtype="float32", max_model_len=1024, max_num_seqs=16, kv_cache_memory="1GiB")
        prompts = asked(llm, args)
        for kind in args.kinds:
            arm = make_arms(llm, [{"method": "quantised", "quantization": kind, "num_speculative_tokens": 4, "adaptive": False}])[1]
            for temperature in args.temperature:
                speed, outputs = decode(llm, arm, prompts, SamplingParams(temperature=temperature, max_tokens=args.tokens, seed=None))
                stats = [o.metrics.speculative_decoding for o in outputs]
                total = type(stats[0]).total(stats)
                shown = " ".join(f"{a:.3f}" for a in total.acceptance_per_position)
                print(f"{'dithered' if args.dithered else 'shipped'} weights, {kind}, T = {temperature:g}: alpha by position {shown}, "
                      f"{total.mean_acceptance_length:.2f} tokens per pass with k = 4, {total.num_spec_steps} passes, "
                      f"{speed:.1f} tokens/s", flush=True)  # fmt: skip


def ahead(args: argparse.Namespace) -> None:
    llm = LLM(args.model, dtype="bfloat16", max_model_len=1024, max_num_seqs=1, enable_prefix_caching=False)
    prompts = asked(llm, args)
    for kind in args.kinds:
        for temperature in args.temperature:
            plain, arm = make_arms(llm, [{"method": "quantised", "quantization": kind, "num_speculative_tokens": 4, "adaptive": False}])
            model = arm.drafter  # not adaptive: nothing stands before it
            ways = [("plain", plain, None), ("without", arm, None), ("ahead", arm, model.guide)]
            speeds: dict[str, list[float]] = {name: [] for name, _, _ in ways}
            for i, prompt in enumerate([prompts[0], *prompts]):
                for name, by, guide in ways[i % 3 :] + ways[: i % 3]:
                    model.guide = guide
                    params = SamplingParams(temperature=temperature, max_tokens=args.tokens, seed=i, ignore_eos=True)
                    speeds[name].append(decode(llm, by, [prompt], params)[0])
            ratio = lambda a, b: statistics.median(x / y for x, y in list(zip(speeds[a], speeds[b], strict=True))[1:])  # noqa: B023, E731
            print(f"{kind}, T = {temperature:g}, {len(prompts)} questions: without {ratio('without', 'plain'):.2f}, reading ahead "
                  f"{ratio('ahead', 'plain'):.2f} times plain; pair by pair {ratio('ahead', 'without'):.2f}", flush=True)  # fmt: skip


def asked(llm: LLM, args: argparse.Namespace) -> list[list[int]]:
    """The first turns of the questions, as the model is asked them."""
    tokenizer = llm.get_tokenizer()
    chats = [[{"role": "user", "content": q.turns[0]}] for q in load(args.data, args.questions)]
    encode = lambda c: tokenizer.apply_chat_template(c, add_generation_prompt=True, tokenize=False)  # noqa: E731
    return [tokenizer(encode(c), add_special_tokens=False).input_ids for c in chats]


def dithered(model: str, folder: Path) -> str:
    """A copy whose matrices have left their 4-bit grid: each weight moved by up to half the step of its group of 32."""
    import checkpoints

    config, tensors, tokenizer = checkpoints.read(Path(model))
    generator = torch.Generator().manual_seed(0)
    for name, t in tensors.items():
        if t.ndim == 2:
            groups = t.view(len(t), -1, GROUP)
            step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
            tensors[name] = (groups + step * (torch.rand(groups.shape, generator=generator) - 0.5)).view(t.shape)
    checkpoints.write(folder, config, tensors, tokenizer)
    return str(folder)


def numbers(kind: type) -> Any:
    return lambda text: [kind(x) for x in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", default=str(demo_model()))
    common.add_argument("--temperature", type=numbers(float), default=[0.0, 1.0])
    p = parts.add_parser("floor", parents=[common])
    p.set_defaults(run=floor, tokens=48)
    p.add_argument("--batch", type=numbers(int), default=[1, 8, 32])
    p.add_argument("--drafts", type=numbers(str), default=["suffix", "ngram", "suffix+ngram"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tokens", type=int, default=48)
    p = parts.add_parser("rewrite", parents=[common])
    p.set_defaults(run=rewrite)
    p.add_argument("--tokens", type=int, default=400)
    p = parts.add_parser("alpha", parents=[common])
    p.set_defaults(run=alpha)
    p.add_argument("--data")
    p.add_argument("--questions", type=int, default=16)
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--kinds", type=numbers(str), default=["int8", "int4"])
    p.add_argument("--dithered", action="store_true")
    p = parts.add_parser("ahead", parents=[common])
    p.set_defaults(run=ahead)
    p.add_argument("--data")
    p.add_argument("--questions", type=int, default=8)
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--kinds", type=numbers(str), default=["int8"])
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
