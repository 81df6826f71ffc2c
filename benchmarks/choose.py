"""Does headstart analyse foretell what drafts will do? Four drafters of the demo model, predicted and measured.

    python benchmarks/choose.py OUT [--limit 6] [--max-tokens 32] [--temperature 0] [further options of headstart analyse]

Two lookups, the target itself in int8, and a draft that is bad on purpose: every fifth layer of the target, untrained. OUT gets the
bad draft, analysis.json and analysis.html. Exit code 1 when the measured order is another, or a prediction is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import checkpoints

LIMIT = 0.15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the report")
    args, rest = parser.parse_known_args()

    from headstart.cli.main import run
    from headstart.models.demo import demo_model

    target, bad = demo_model(), args.out / "bad"
    if not bad.exists():
        config, tensors, tokenizer = checkpoints.read(target)
        checkpoints.write(bad, *checkpoints.pruned(config, tensors, 5), tokenizer)
    own = json.dumps({"model": str(target), "quantization": "int8"})
    drafts = [part for d in ("ngram", "suffix", own, str(bad)) for part in ("--draft", d)]
    small = ["--limit", "6", "--max-tokens", "32", "-k", "8", "--max-model-len", "1024", "--kv-cache-memory", "1GiB"]
    given = {a for a in rest if a.startswith("--")}
    defaults = [a for pair in zip(small[::2], small[1::2], strict=True) if pair[0] not in given for a in pair]
    code = run(["analyse", str(target), *drafts, *defaults, "--measure-all", "--out", str(args.out), *rest])
    if code:
        return code
    found = json.loads((args.out / "analysis.json").read_text())
    worst = max(abs(m["error"]) for m in found["measured"].values())
    print(f"measured order is the predicted one: {found['same_order']}; largest error {100 * worst:.0f} % (at most {100 * LIMIT:.0f} %)")
    return 0 if found["same_order"] and worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
