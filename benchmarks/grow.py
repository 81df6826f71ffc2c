"""A deeper target that computes the same function as a small checkpoint, or nearly: for benchmarks where no larger model ships.

    python benchmarks/grow.py OUT [--times 7] [--noise 0] [--dtype float32]

Layers are added whose output projections are zero, so each adds nothing to the residual stream but costs what a layer costs;
their other weights are copies, so no engine can leave anything out. With `--noise S` the output projections of the added
layers are S times as large as those of the layers they copy, of random sign: the target then disagrees with the small model
now and then, as a larger sibling does. The small model drafts. `--times` is the cost ratio by weights read per token.

A speed-up on a grown target is real work at a real cost ratio, but its acceptance was made up by S: config.json says so in
`headstart_grown`, which every report repeats. Uses the demo model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import checkpoints
import torch

OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def grow(tensors: dict[str, torch.Tensor], layers: int, wanted: int, noise: float) -> dict[str, torch.Tensor]:
    """The tensors of a model of `wanted` layers; the added ones are spread evenly between the old."""
    generator = torch.Generator().manual_seed(0)
    out = {n: t for n, t in tensors.items() if not n.startswith("model.layers.")}
    new = 0
    for old in range(layers):
        copies = (old + 1) * wanted // layers - old * wanted // layers
        for copy in range(copies):
            prefix = f"model.layers.{old}."
            for name, t in tensors.items():
                if not name.startswith(prefix):
                    continue
                part = name.removeprefix(prefix)
                if copy and part in OUTPUTS:
                    t = noise * t.std() * torch.randn(t.shape, generator=generator) if noise else torch.zeros_like(t)
                elif copy:
                    t = t.clone()
                out[f"model.layers.{new}.{part}"] = t
            new += 1
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the checkpoint")
    parser.add_argument("--times", type=float, default=7.0, help="weights read per token, relative to the small model")
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    if args.times < 1 or args.noise < 0:
        parser.error("--times must be at least 1 and --noise at least 0")

    from headstart.models.demo import demo_model

    config, tensors, tokenizer = checkpoints.read(demo_model())
    layers = config["num_hidden_layers"]
    per_layer = sum(t.numel() for n, t in tensors.items() if n.startswith("model.layers.0."))
    small = sum(t.numel() for t in tensors.values())
    wanted = layers + round((args.times - 1) * small / per_layer)
    grown = grow(tensors, layers, wanted, args.noise)
    told = f"grown from SmolLM2-135M-Instruct: {wanted - layers} of {wanted} layers were added, " + (
        f"with random output of scale {args.noise:g}; how often drafts stand was set by that" if args.noise else "and compute nothing"
    )
    config = {**config, "num_hidden_layers": wanted, "headstart_grown": told}
    checkpoints.write(args.out, config, {n: t.to(getattr(torch, args.dtype)) for n, t in grown.items()}, tokenizer)
    size = sum(t.numel() for t in grown.values())
    print(f"{args.out}: {wanted} layers, {size / 1e6:.0f}M weights, {size / small:.1f} times the small model; {told}")


if __name__ == "__main__":
    main()
