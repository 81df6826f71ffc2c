"""Counter-based uniforms: a number is a function of (seed, lane, root, index) and of nothing else.

There is no generator and no call order, so a request draws the same numbers alone, in a batch, after preemption,
or when a step is thrown away. `ops/noise.py` computes the same function on tensors, bit for bit.

The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), applied once per coordinate. Lanes keep the streams for drafting, accepting, and drawing the tail apart;
sharing one of them between drafting and recovery biases the output.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

# Rejection and block verification key by root = the sequence length at the start of the step, which strictly grows.
DRAFT, ACCEPT, TAIL = 1, 2, 3
# Plain sampling and `match` key by the absolute position of the token: the target's choice there is one function of the seed.
POSITION = 4
# Derives the seed of a request from the engine's, and of a child of `n` from the request's.
CHILD = 5


def mix(x: int) -> int:
    """One round of SplitMix64 on a 64-bit integer."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def key(seed: int, *coordinates: int) -> int:
    """A 64-bit key for a point of the counter space."""
    h = mix(seed & MASK)
    for c in coordinates:
        h = mix(h ^ (c & MASK))
    return h


def to_unit(bits: int) -> float:
    """64 random bits to a double in [0, 1), on the 2^-53 grid: never 1.0."""
    return (bits >> 11) * 2.0**-53


def uniform(seed: int, lane: int, root: int, index: int = 0) -> float:
    """The uniform in [0, 1) at (seed, lane, root, index)."""
    return to_unit(key(seed, lane, root, index))


def child_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th child of a seed (a request of an engine, a completion of `n`)."""
    return key(seed, CHILD, index)
