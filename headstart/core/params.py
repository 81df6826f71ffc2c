"""SamplingParams: what a request asks for, with vLLM's names and defaults, validated once at construction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headstart.core.checks import flag, integer, number, text
from headstart.core.errors import ConfigError, first_line, names_nearest

GREEDY_BELOW = 1e-5  # vLLM's border: a temperature below it means argmax, for sampler and drafter alike
VERIFY_RULES = ("rejection", "block", "match")
MAX_N = 256
SEED_RANGE = (-(1 << 63), (1 << 64) - 1)
_MAX_ID = (1 << 31) - 1

# A logits processor: (token ids so far, one row of logits [V]) -> a row [V]. It must depend on nothing else.
LogitsProcessor = Callable[[list[int], Any], Any]


@names_nearest
@dataclass(frozen=True)
class StructuredOutputsParams:
    """What the output must look like: exactly one of `json`, `regex`, `choice`, `grammar`, `json_object`.

    json: a JSON schema, as a dictionary or as text. regex: the whole output matches it. choice: the output is one of these
    strings. grammar: a context-free grammar in the Lark form of llguidance. json_object: any JSON object.
    disable_any_whitespace: with `json`, no whitespace between the parts, so more of the output is forced.
    Raises ConfigError; whether a schema or grammar compiles is found when the request is added, before anything runs.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in kinds if getattr(self, name) not in (None, False) or (name == "json" and self.json is False)]
        if len(given) != 1:
            raise ConfigError(f"structured_outputs needs exactly one of {', '.join(kinds)}; it has {', '.join(given) or 'none'}")
        flag("disable_any_whitespace", self.disable_any_whitespace)
        if self.disable_any_whitespace and given[0] not in ("json", "json_object"):
            raise ConfigError(f"disable_any_whitespace has no effect with {given[0]}: it belongs to json")
        if self.json_object is not None:
            flag("json_object", self.json_object)
        text("regex", self.regex)
        text("grammar", self.grammar)
        if self.choice is not None:
            if not _strings("choice", self.choice):
                raise ConfigError("choice=[] leaves nothing to choose: name at least one string")
            object.__setattr__(self, "choice", tuple(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))


def _schema(given: Any) -> Any:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as e:
            raise ConfigError(f"json is not a JSON schema ({first_line(e)}): give a dictionary, or its text") from None
    if not isinstance(given, (Mapping, bool)):
        raise ConfigError(f"json={given!r} is not a JSON schema: a schema is an object such as {{'type': 'object', ...}}")
    try:
        json.dumps(given)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"json is not a JSON schema: {first_line(e)}") from None
    return given


@names_nearest
@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one request (vLLM's names and defaults).

    The law is computed in this order, the same code with and without drafts: logits in fp32; structured_outputs,
    allowed_token_ids, bad_words, min_tokens, logit_bias; repetition, frequency and presence penalty;
    logits_processors; temperature; min_p, top_k, top_p, each filter on the renormalised survivors of the one before.
    `temperature` below 1e-5 is greedy. `docs/options.md` says what each does under speculation, and what it costs.

    Ours beyond vLLM: `num_speculative_tokens` (drafts per step for this request, 0 = off) and `verify` (the rule for
    this request), None takes the engine's; `drafter` (which of the configured drafters serves this request, by name; None
    takes the best in each step); `prediction` (text or token ids: the answer you expect, which is drafted from
    wherever it fits; changes the speed, never the answer); `trace_drafts` (how every token was judged, in
    `CompletionOutput.traces`). `logits_processors` are callables (token ids, logits [V]) ->
    logits [V], called for every row with the prefix of that row. `best_of` makes that many completions and returns the `n`
    with the highest cumulative log probability. Raises ConfigError naming the field when a value is out of range, or two
    fields contradict each other.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1 mean off
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: up to the context limit
    min_tokens: int = 0
    logprobs: int | None = None  # how many of the likeliest beside the token itself; -1 for all
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logits_processors: Sequence[LogitsProcessor] | None = None
    truncate_prompt_tokens: int | None = None  # keep this many last tokens of the prompt; -1: as many as leave room
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    num_speculative_tokens: int | None = None
    verify: str | None = None
    drafter: str | None = None
    prediction: str | Sequence[int] | None = None
    trace_drafts: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - frozen, and only here
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output", "trace_drafts"):
            flag(name, getattr(self, name))
        if self.verify is not None and self.verify not in VERIFY_RULES:
            raise ConfigError(f"verify={self.verify!r} must be one of {', '.join(VERIFY_RULES)}")
        put("stop", _strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop))
        put("bad_words", _strings("bad_words", self.bad_words))
        put("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            put("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ConfigError("allowed_token_ids=[] allows no token: name at least one, or leave it out")
        put("logit_bias", _bias(self.logit_bias))
        processors = () if self.logits_processors is None else self.logits_processors
        if not isinstance(processors, (list, tuple)) or not all(callable(p) for p in processors):
            raise ConfigError(f"logits_processors={processors!r} must be a list of callables (token ids, logits) -> logits")
        put("logits_processors", tuple(processors))
        if isinstance(self.structured_outputs, Mapping):
            put("structured_outputs", StructuredOutputsParams(**{str(k): v for k, v in self.structured_outputs.items()}))
        elif self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise ConfigError(f"structured_outputs={self.structured_outputs!r} must be a StructuredOutputsParams or a dictionary")
        text("drafter", self.drafter)
        check_prediction(self.prediction)
        self._check_together()

    def _check_numbers(self) -> None:
        integer("n", self.n, 1, MAX_N)
        number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        number("temperature", self.temperature, 0.0, 1e4)
        number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        integer("top_k", self.top_k, -1, _MAX_ID)
        number("min_p", self.min_p, 0.0, 1.0)
        integer("min_tokens", self.min_tokens, 0, _MAX_ID)
        for name, low, high in (
            ("best_of", 1, MAX_N),
            ("seed", *SEED_RANGE),
            ("max_tokens", 1, _MAX_ID),
            ("logprobs", -1, _MAX_ID),
            ("prompt_logprobs", -1, _MAX_ID),
            ("truncate_prompt_tokens", -1, _MAX_ID),
            ("num_speculative_tokens", 0, 128),
        ):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), low, high)
        if self.truncate_prompt_tokens == 0:
            raise ConfigError("truncate_prompt_tokens=0 leaves no prompt: keep at least 1 token, or -1 for as many as leave room")

    def _check_together(self) -> None:
        """What cannot be had together."""
        if self.best_of is not None and self.best_of < self.n:
            raise ConfigError(f"best_of={self.best_of} is below n={self.n}: n of the best_of completions are returned")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}")
        if not self.detokenize and self.stop:
            raise ConfigError("stop strings are found in the text, which detokenize=False does not make: use stop_token_ids")
        if self.structured_outputs is not None:
            for name in ("ignore_eos", "min_tokens", "allowed_token_ids"):
                if getattr(self, name):
                    raise ConfigError(
                        f"{name}={getattr(self, name)!r} cannot be combined with structured_outputs: "
                        "the grammar decides which tokens may come and where the text ends"
                    )

    @property
    def greedy(self) -> bool:
        """Whether the law is one-hot on the argmax."""
        return self.temperature < GREEDY_BELOW

    @property
    def shapes(self) -> bool:
        """Whether any option changes logits by the prefix of their row, so that `ops/shaping.py` has work."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.min_tokens
            or self.bad_words
            or self.logit_bias
            or self.allowed_token_ids
            or self.logits_processors
            or self.structured_outputs
        )

    @property
    def completions(self) -> int:
        """How many completions are made; `n` of them are returned."""
        return self.n if self.best_of is None else self.best_of

    def with_temperature(self, temperature: float) -> SamplingParams:
        """The same options at another temperature (a draft's own)."""
        return replace(self, temperature=temperature)


def _strings(name: str, given: Any) -> tuple[str, ...]:
    given = () if given is None else given
    if not isinstance(given, (list, tuple)) or not all(isinstance(s, str) and s for s in given):
        raise ConfigError(f"{name}={given!r} must be a list of non-empty strings")
    return tuple(given)


def _ids(name: str, given: Any) -> tuple[int, ...]:
    given = () if given is None else given
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"{name}={given!r} must be a list of token ids")
    for t in given:
        integer(name, t, 0, _MAX_ID)
    return tuple(given)


def _bias(given: Any) -> dict[int, float]:
    """Token id -> bias. OpenAI clients write the ids as strings."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ConfigError(f"logit_bias={given!r} must map token ids to numbers")
    out: dict[int, float] = {}
    for key, value in given.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() else key
        integer("logit_bias: token id", token, 0, _MAX_ID)
        number(f"logit_bias[{token}]", value, -100.0, 100.0)
        out[token] = float(value)
    return out


def check_prediction(given: object) -> None:
    """None, text, or token ids; not empty. Raises ConfigError."""
    if given is None or (isinstance(given, str) and given):
        return
    if not isinstance(given, (list, tuple)) or not given:
        raise ConfigError(f"prediction={given!r} must be the expected answer as text or as a list of token ids, and not empty")
    for t in given:
        integer("prediction", t, 0, (1 << 31) - 1)
