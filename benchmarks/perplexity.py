"""What fewer bits cost in perplexity, over one text for all: documents of this repository.

    python benchmarks/perplexity.py [--model M] [--tokens 4000] [--kinds float32,bfloat16,int8,int4] [--dithered]

The demo model was stored on a 4-bit grid, so it loses next to nothing in 4 bits; with --dithered every weight first leaves its grid
by up to half a step (`drafting.py`), as in a model that never was on one. No figure here depends on the speed of the machine.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from drafting import dithered

from headstart import LLM
from headstart.models.demo import demo_model
from headstart.runtime.runner import Feed

TEXTS = ("docs/lossless.md", "docs/tour.md", "docs/drafters.md")
KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
ROWS = 500  # of a pass


def surprise(llm: LLM, text: str, tokens: int) -> tuple[float, int]:
    """(mean negative log probability, how many tokens it is of): each of the first `tokens` after all before it."""
    ids = llm.get_tokenizer()(text).input_ids[:tokens]
    engine, total = llm.engine, 0.0
    table = list(range(-(-len(ids) // engine.pool.block_size)))
    for at in range(0, len(ids) - 1, ROWS):
        piece = ids[at : min(at + ROWS, len(ids) - 1)]
        (logits,) = engine.target.forward([Feed(piece, at, table, len(piece))])
        wanted = torch.tensor(ids[at + 1 : at + 1 + len(piece)])
        total -= float(logits.log_softmax(-1).gather(1, wanted[:, None]).double().sum())
    return total / (len(ids) - 1), len(ids) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(demo_model()))
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--dithered", action="store_true")
    args = parser.parse_args()
    text = "\n".join((Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in TEXTS)
    with tempfile.TemporaryDirectory() as folder:
        model = dithered(args.model, Path(folder)) if args.dithered else args.model
        base = None
        for kind in args.kinds:
            found, count = surprise(LLM(model, max_model_len=args.tokens, max_num_seqs=1, **KINDS[kind]), text, args.tokens)
            base = found if base is None else base
            print(f"{'dithered' if args.dithered else 'shipped'} weights, {kind}: perplexity {math.exp(found):.3f} over {count} tokens, "
                  f"{math.exp(found - base) - 1:+.2%} of {args.kinds[0]}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
