"""Greedy text of the real checkpoints against transformers in float32, with and without drafts; and pairs of unequal models.

    python benchmarks/same_text.py [--tokens 24] [--prompts 20] [MODEL.gguf ...]

transformers reads the same GGUF file with its own reader, and generates prompt by prompt. Ours takes all prompts in one batch: plain,
with ngram drafts, and with a draft model (the target with noise on its weights). Where texts part, the gap of the two best logits
is printed. Then SmolLM2 drafts for a tiny model with its tokenizer, which is warned of, and the other way round. Exit code 1 on any
difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import checkpoints
import torch
from identical import PROMPTS, gap

METHODS = {
    "plain": None,
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "draft model": {"method": "draft_model"},
}
OPTIONS = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory": "1GiB"}


def theirs(gguf: Path, prompts: list[list[int]], tokens: int, eos: list[int]) -> list[list[int]]:
    """What transformers writes."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stored = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]  # from_pretrained would want accelerate
    left = model.load_state_dict(stored, strict=False)
    assert not left.unexpected_keys and set(left.missing_keys) <= {"lm_head.weight"}, left
    out = []
    for ids in prompts:
        with torch.inference_mode():
            made = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids)),
                do_sample=False,
                max_new_tokens=tokens,
                eos_token_id=eos,
                pad_token_id=0,
            )
        out.append(made[0, len(ids) :].tolist())
    return out


def compare(gguf: Path, count: int, tokens: int) -> int:
    """Texts that differ, over all methods."""
    from headstart import LLM, SamplingParams

    wanted: list[list[int]] = []
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, spec in METHODS.items():
            if name == "draft model":
                config, tensors, tokenizer = checkpoints.read(gguf)
                checkpoints.write(Path(folder), config, checkpoints.noisy(tensors, 0.1), tokenizer)
                del tensors
                spec = {**spec, "model": folder}
            if spec is not None:
                spec = {**spec, "num_speculative_tokens": 5, "adaptive": False}
            llm = LLM(str(gguf), speculative_config=spec, **OPTIONS)
            tokenizer = llm.get_tokenizer()
            asked = [
                tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
                if tokenizer.chat_template
                else p
                for p in PROMPTS[:count]
            ]
            prompts = [list(tokenizer(t, add_special_tokens=not tokenizer.chat_template).input_ids) for t in asked]
            eos = list(llm.engine.eos_ids)
            wanted = wanted or theirs(gguf, prompts, tokens, eos)
            outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens), use_tqdm=False)
            stats = [o.metrics.speculative_decoding for o in outputs]
            counts = f"accepted {sum(s.num_accepted_draft_tokens for s in stats)}/{sum(s.num_draft_tokens for s in stats)}"
            different = [i for i, o in enumerate(outputs) if list(o.outputs[0].token_ids) != wanted[i]]
            print(f"{gguf.name:36s} {name:12s} {count - len(different)} of {count} as transformers, {counts}", flush=True)
            for i in different:
                ids = list(outputs[i].outputs[0].token_ids)
                at = next((j for j, (a, b) in enumerate(zip(ids, wanted[i], strict=False)) if a != b), min(len(ids), len(wanted[i])))
                print(f"    prompt {i}: parts at token {at}, gap of the two best logits {gap(llm, prompts[i], ids[:at]):.2g}")
            wrong += len(different)
            del llm
    return wrong


def unequal(gguf: Path, tokens: int) -> int:
    """SmolLM2 drafting for a tiny model, and the other way round."""
    from headstart import LLM, SamplingParams

    config, tensors, tokenizer = checkpoints.read(gguf)
    small = {**config, "num_hidden_layers": 2, "intermediate_size": 64}
    tensors = {n: t[:64] if "gate_proj" in n or "up_proj" in n else t[:, :64] if "down_proj" in n else t for n, t in tensors.items()}
    kept = {n: t.contiguous() for n, t in tensors.items() if not n.startswith("model.layers.") or int(n.split(".")[2]) < 2}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.write(Path(folder), small, kept, tokenizer)
        for target, draft in ((folder, str(gguf)), (str(gguf), folder)):
            texts = []
            for spec in (None, {"method": "draft_model", "model": draft, "num_speculative_tokens": 4, "adaptive": False}):
                llm = LLM(target, speculative_config=spec, **OPTIONS)
                outputs = llm.generate(PROMPTS[:4], SamplingParams(temperature=0, max_tokens=tokens), use_tqdm=False)
                texts.append([list(o.outputs[0].token_ids) for o in outputs])
                warned = any("swapped" in line for line in llm.notes)
            stats = [o.metrics.speculative_decoding for o in outputs]
            what = "SmolLM2 drafts for a tiny model" if target == folder else "a tiny model drafts for SmolLM2"
            same = texts[0] == texts[1]
            counts = f"accepted {sum(s.num_accepted_draft_tokens for s in stats)}/{sum(s.num_draft_tokens for s in stats)}"
            print(f"{what}: {'same text' if same else 'OTHER TEXT'}, {counts}, {'warned' if warned else 'no warning'}", flush=True)
            wrong += not same or warned != (target == folder)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    args = parser.parse_args()

    from headstart.core.folders import cache_folder
    from headstart.models.demo import demo_model

    gemma = cache_folder() / "gemma-3-270m-q4_k_m.gguf"
    models = args.models or [demo_model(), *([gemma] if gemma.exists() else [])]
    wrong = sum(compare(m, args.prompts, args.tokens) for m in models)
    if not args.models:
        wrong += unequal(demo_model(), args.tokens)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
