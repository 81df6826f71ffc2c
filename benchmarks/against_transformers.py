"""Plain and speculative decoding against transformers' `generate`: same weights, same dtype, same prompts, one process, interleaved.

    python benchmarks/against_transformers.py [--dtype bfloat16] [--tokens 64] [--rounds 3]

Prints tokens per second of each arm (median over prompts and rounds), the median of pairwise ratios, how many texts are
identical, load time and peak memory. Uses the demo model.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch

TEXT = (
    "The harbour museum opened in 1931 in the old customs house. It keeps some four thousand objects: ship models, charts, "
    "instruments and the log books of the pilot service, which began in 1842. A storm in 1953 flooded the cellar and destroyed "
    "most of the early charts. Since then the collection has been kept on the upper floors, and every chart has been copied twice. "
    "The museum is run by volunteers, many of them former pilots, and is open from April to October."
)
PROMPTS = [
    f"Summarise this text, keeping its wording where you can.\n\n{TEXT}",
    "Write a short story about a fox who learns to swim.",
    "Explain in simple words why the sky is blue.",
    "List five things to check before a long bicycle tour, each with one sentence.",
]


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_transformers_copy(gguf: Path, folder: Path) -> None:
    """The dequantised demo model as a checkpoint that transformers loads."""
    from safetensors.torch import save_file

    from headstart.models.gguf import GGUFFile

    file = GGUFFile(gguf)
    config = {**file.config(), "architectures": ["LlamaForCausalLM"], "eos_token_id": file.eos_ids()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: file.tensor(n).contiguous() for n in file.names()}, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    from headstart import LLM, SamplingParams
    from headstart.models.demo import demo_model

    gguf = demo_model()
    before = peak_mb()
    start = time.perf_counter()
    # Equal work for every arm: no prompt is remembered.
    room = {"max_model_len": 2048, "kv_cache_memory": "256MiB", "enable_prefix_caching": False}
    llm = LLM(str(gguf), dtype=args.dtype, speculative_config={"method": "ngram"}, **room)
    loading, model = time.perf_counter() - start, llm.engine.target.model
    chats = [[{"role": "user", "content": p}] for p in PROMPTS]

    def ours(chat, drafts: int | None):
        params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True, num_speculative_tokens=drafts)
        t = time.perf_counter()
        out = llm.chat(chat, params, use_tqdm=False)[0]
        return args.tokens / (time.perf_counter() - t), out.outputs[0].token_ids

    ours(chats[0], None)
    weights = model.parameters * model.dtype.itemsize / 2**20
    print(f"loading {loading:.1f} s; peak memory {peak_mb():.0f} MB, of which {before:.0f} before, {weights:.0f} weights, up to 256 KV")

    from transformers import AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        write_transformers_copy(gguf, Path(folder))
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)

    def theirs(chat):
        _, ids = llm._render(chat, None)
        inputs = torch.tensor([ids])
        length = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
        t = time.perf_counter()
        out = reference.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, pad_token_id=0, **length)
        return args.tokens / (time.perf_counter() - t), out[0, len(ids) :].tolist()

    theirs(chats[0])
    plain, drafted, hf, same = [], [], [], 0
    for _ in range(args.rounds):
        for chat in chats:
            for speeds, arm in ((plain, lambda c: ours(c, 0)), (hf, theirs), (drafted, lambda c: ours(c, None))):
                speed, ids = arm(chat)
                speeds.append(speed)
                if speeds is plain:
                    expected = ids
                elif speeds is drafted:
                    same += ids == expected
    n, median = len(PROMPTS), statistics.median

    def ratio(a: list[float], b: list[float]) -> float:
        return median(x / y for x, y in zip(a, b, strict=True))

    dtype = str(model.dtype).removeprefix("torch.")
    print(f"{dtype}, {args.tokens} tokens, {n} prompts, {args.rounds} rounds, {torch.get_num_threads()} threads")
    print(f"transformers generate     {median(hf):6.1f} tok/s")
    print(f"headstart plain           {median(plain):6.1f} tok/s, {ratio(plain, hf):.2f} times transformers")
    print(f"headstart ngram           {median(drafted):6.1f} tok/s, {ratio(drafted, plain):.2f} times plain")
    summary, base = drafted[::n], plain[::n]
    print(f"  on the summary prompt   {median(summary):6.1f} tok/s, {ratio(summary, base):.2f} times plain ({median(base):.1f})")
    print(f"texts identical to plain: {same} of {len(drafted)}")


if __name__ == "__main__":
    main()
