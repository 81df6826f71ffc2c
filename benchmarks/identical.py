"""Greedy token ids of SmolLM2 with every drafter and draft length against plain decoding, prompt by prompt.

    python benchmarks/identical.py [--dtype float32] [--tokens 32] [--drafts 0-16] [--prompts 20]

The reference is one prompt at a time without drafts; the speculative runs take all prompts in one batch. Drafters: ngram,
and as a draft model a copy of the target with noise on its weights, so that some drafts stand and some fall. Prints for each run
how many texts are identical, and for a difference the gap between the two best logits there. Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import checkpoints

PROMPTS = [
    "Write a short story about a fox who learns to swim.",
    "Explain in simple words why the sky is blue.",
    "List five things to check before a long bicycle tour.",
    "Translate into French: The shop is closed on Sundays, but the bakery next door is open.",
    "Summarise: The museum opened in 1931. It keeps four thousand objects. A storm in 1953 destroyed most of the early charts.",
    "What is 17 times 23? Show the steps.",
    "Write a Python function that reverses a list without using slices.",
    "Give the names and capitals of three countries in South America as JSON.",
    "Repeat exactly: one two three four, one two three four, one two three five.",
    "Why do cats purr?",
    "Rewrite politely: Send me the report now.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the trip take?",
    "Name a use for each: a hammer, a ladder, a rope.",
    "Continue the list: red, orange, yellow,",
    "用中文介绍一下长城。",
    "Write a haiku about rain on a tin roof.",
    "Fix the mistakes: he go to school yesterday and forgetted his book.",
    "What is the difference between weather and climate?",
    "Extract the dates: The fair runs from 3 May to 9 May 2024; tickets are sold from 1 April.",
    "Describe the taste of a lemon to someone who has never had one.",
]


def gap(llm, prompt_ids: list[int], output: list[int]) -> float:
    """The difference of the two best logits after `output`."""
    from headstart.runtime.runner import Feed

    tokens, table = prompt_ids + output, list(range(llm.engine.pool.num_blocks))
    logits = llm.engine.target.forward([Feed(tokens, 0, table, 1)])[0][0]
    best = logits.topk(2).values
    return float(best[0] - best[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--drafts", default="0-16", help="draft lengths, as 0-16 or 1,4,8")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--noise", type=float, default=0.1)
    args = parser.parse_args()
    low, dash, high = args.drafts.partition("-")
    lengths = range(int(low), int(high) + 1) if dash else [int(x) for x in args.drafts.split(",")]

    from headstart import LLM, SamplingParams
    from headstart.models.demo import demo_model

    gguf = demo_model()
    prompts = [[{"role": "user", "content": p}] for p in PROMPTS[: args.prompts]]
    common = {"dtype": args.dtype, "max_model_len": 512, "kv_cache_memory": "2GiB", "enable_prefix_caching": False}
    reference: list[list[int]] = []
    texts = differences = 0
    with tempfile.TemporaryDirectory() as folder:
        config, tensors, tokenizer = checkpoints.read(gguf)
        checkpoints.write(Path(folder), config, checkpoints.noisy(tensors, args.noise), tokenizer)
        for config in ({"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}, {"method": "draft_model", "model": folder}):
            llm = LLM(str(gguf), speculative_config={**config, "num_speculative_tokens": 16, "adaptive": False}, **common)

            def run(many, drafts: int, llm=llm):
                return llm.chat(many, SamplingParams(temperature=0, max_tokens=args.tokens, num_speculative_tokens=drafts), use_tqdm=False)

            reference = reference or [run([p], 0)[0].outputs[0].token_ids for p in prompts]
            for k in lengths:
                outputs = run(prompts, k)
                stats = [o.metrics.speculative_decoding for o in outputs]
                counts = f"{sum(s.num_accepted_draft_tokens for s in stats)}/{sum(s.num_draft_tokens for s in stats)}"
                wrong = [(i, o) for i, o in enumerate(outputs) if o.outputs[0].token_ids != reference[i]]
                texts, differences = texts + len(outputs), differences + len(wrong)
                same = f"{len(outputs) - len(wrong)} of {len(outputs)} identical"
                print(f"{config['method']:11s} k={k:2d}: {same}, accepted {counts}", flush=True)
                for i, o in wrong:
                    ids = o.outputs[0].token_ids
                    at = next((j for j, (a, b) in enumerate(zip(ids, reference[i], strict=False)) if a != b), len(ids))
                    apart = gap(llm, o.prompt_token_ids, ids[:at])
                    print(f"    prompt {i}: first difference at token {at}, gap of the two best logits {apart:.2g}")
            del llm
    print(f"{args.dtype}: {texts - differences} of {texts} texts identical to plain decoding")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
