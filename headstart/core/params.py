"""SamplingParams: what a request asks for, with vLLM's names and defaults, validated once at construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from headstart.core.checks import flag, integer, number
from headstart.core.errors import ConfigError, names_nearest

GREEDY_BELOW = 1e-5  # vLLM's border: a temperature below it means argmax, for sampler and drafter alike
VERIFY_RULES = ("rejection", "block", "match")
MAX_N = 256
SEED_RANGE = (-(1 << 63), (1 << 64) - 1)


@names_nearest
@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one request (vLLM's names and defaults).

    The law is computed in this order, the same code with and without drafts: logits in fp32, temperature, min_p,
    top_k, top_p, each filter on the renormalised survivors of the one before. `temperature` below 1e-5 is greedy.

    Ours beyond vLLM: `num_speculative_tokens` (drafts per step for this request, 0 = off) and `verify` (the rule for
    this request), None takes the engine's; `prediction` (text or token ids: the answer you expect, which is drafted from
    wherever it fits; changes the speed, never the answer). Raises ConfigError naming the field when a value is out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1 mean off
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: up to the context limit
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    num_speculative_tokens: int | None = None
    verify: str | None = None
    prediction: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        integer("n", self.n, 1, MAX_N)
        number("temperature", self.temperature, 0.0, 1e4)
        number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        integer("top_k", self.top_k, -1, (1 << 31) - 1)
        number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            integer("seed", self.seed, *SEED_RANGE)
        if self.max_tokens is not None:
            integer("max_tokens", self.max_tokens, 1, (1 << 31) - 1)
        if self.num_speculative_tokens is not None:
            integer("num_speculative_tokens", self.num_speculative_tokens, 0, 128)
        if self.verify is not None and self.verify not in VERIFY_RULES:
            raise ConfigError(f"verify={self.verify!r} must be one of {', '.join(VERIFY_RULES)}")
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            flag(name, getattr(self, name))
        stop = (self.stop,) if isinstance(self.stop, str) else () if self.stop is None else self.stop
        if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) and s for s in stop):
            raise ConfigError(f"stop={self.stop!r} must be a non-empty string or a list of them")
        ids = () if self.stop_token_ids is None else self.stop_token_ids
        if not isinstance(ids, (list, tuple)):
            raise ConfigError(f"stop_token_ids={ids!r} must be a list of token ids")
        for t in ids:
            integer("stop_token_ids", t, 0, (1 << 31) - 1)
        check_prediction(self.prediction)
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_token_ids", tuple(ids))

    @property
    def greedy(self) -> bool:
        """Whether the law is one-hot on the argmax."""
        return self.temperature < GREEDY_BELOW

    def with_temperature(self, temperature: float) -> SamplingParams:
        """The same filters at another temperature (a draft's own)."""
        return replace(self, temperature=temperature)


def check_prediction(given: object) -> None:
    """None, text, or token ids; not empty. Raises ConfigError."""
    if given is None or (isinstance(given, str) and given):
        return
    if not isinstance(given, (list, tuple)) or not given:
        raise ConfigError(f"prediction={given!r} must be the expected answer as text or as a list of token ids, and not empty")
    for t in given:
        integer("prediction", t, 0, (1 << 31) - 1)


FIELDS = tuple(f.name for f in fields(SamplingParams))
