"""SpeculativeConfig: how drafts are made and judged; frozen, validated once. vLLM's keys act, or are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

from headstart.core.checks import flag, integer, number, put_once, quantization, text
from headstart.core.errors import ConfigError, names_nearest, nearest
from headstart.core.methods import OWNERS, VLLM_METHODS, check_method, drafter_of, from_vllm, kind
from headstart.core.params import VERIFY_RULES, SamplingParams

DEFAULT_DRAFTS = 5
DEFAULT_SUFFIX_DRAFTS = 24  # as in vLLM: the match decides, this is the ceiling
DEFAULT_PREDICTION_DRAFTS = 16
DEFAULT_SPEC_FACTOR = 4.0
DEFAULT_MIN_TOKEN_PROB = 0.1
MAX_DRAFTS = 128

# Keys of vLLM's speculative_config that mean something else here, or nothing on a single device; with backend="vllm" they act.
_REFUSED = {
    "draft_tensor_parallel_size": "only 1 is possible: the native engine runs on one device",
    "disable_by_batch_size": "not available: set num_speculative_tokens=0 in SamplingParams for a request without drafts",
    "num_speculative_tokens_per_batch_size": "not available yet: drafts are the same length at every batch size",
    "parallel_drafting": "not available: drafts are made one after the other",
}
# Further keys that vLLM knows and that have no counterpart here; "arctic" chooses its own suffix method over ours.
_VLLM_KEYS = (
    *_REFUSED,
    "use_heterogeneous_vocab",
    *("quantization", "code_revision", "kv_cache_dtype", "attention_backend", "moe_backend", "enforce_eager", "draft_load_config"),
    *("arctic", "use_local_argmax_reduction", "disable_padded_drafter_batch", "enable_adaptive_verification", "dspark_draft_topk"),
)

# The values of those that ask for exactly what happens anyway.
_HARMLESS = {"draft_tensor_parallel_size": 1, "parallel_drafting": False}


def verify_rule(params: SamplingParams, configured: str | None) -> str:
    """How the drafts of a request are verified: as it says, else as configured, else so that a seed gives the same text again."""
    return params.verify or configured or ("match" if params.seed is not None else "rejection")


@names_nearest
@dataclass(frozen=True)
class SpeculativeConfig:
    """How drafts are made and judged.

    method: "none"; lookup in the request's own text: "ngram" (n-grams of fixed lengths) or "suffix" (any length); "corpus" (lookup
        in the user's texts and the request's own); "prediction" (nothing but the predictions of requests); "draft_model"; "head"
        (a feature-level head, "eagle3" to vLLM; "draft_model" takes one too); "quantised" (the target itself with its weights in
        fewer bits, reading the target's own keys and values); "hybrid" (several of these, the one that promises most in each
        step); or a drafter of others: "package.module:Name" or the name of an entry point. May be left out when another option
        says it.
    drafters: of hybrid: a list of what `drafter_of` takes ("suffix", "corpus:INDEX", a model) or of dictionaries with these
        options. What is set beside the list holds for all to which it applies.
    model: the draft checkpoint (directory, GGUF file or hub id), for draft_model and head.
    num_speculative_tokens: drafts per step, 1..128 (default 5; suffix and corpus 24, prediction 16).
    num_prediction_tokens: drafts per step from the prediction of a request (default: num_speculative_tokens if given, else 16).
    prompt_lookup_max, prompt_lookup_min: longest and shortest match of ngram (default 4 and 2; one set, the other
        copies it, as in vLLM).
    suffix_decoding_max_spec_factor: a match of m tokens is worth this many times m drafts (default 4).
    suffix_decoding_min_token_prob: a draft ends where what follows was seen this seldom after the match (default 0.1).
    suffix_decoding_max_tree_depth: as in vLLM the default of num_speculative_tokens, and its limit.
    shared: let suffix look into the earlier outputs of all requests too. Off by default: how fast an answer comes would tell
        one user about another's. suffix_decoding_max_cached_requests: how many outputs are kept for that (default 1000).
    corpus: an index made by `headstart index build`, for corpus.
    verify: "rejection", "block" (never fewer tokens than rejection) or "match" (for a seed, the text of plain sampling).
        None, the default: "match" for requests that bring a seed, since they ask for the same text again, else "rejection".
    adaptive: draft only as much as pays (default): the length that promises most tokens per measured second, up to
        num_speculative_tokens, 0 among them. False: always num_speculative_tokens.
    draft_temperature: the draft's own temperature; None takes the request's, 0 drafts greedily. Lossless at any value.
    max_model_len: a context limit for the draft below its own.
    revision: of the draft on the hub. quantization: "int8" or "int4" to quantise the draft's weights at load; of quantised
        how the target's own are (default int8).
    use_heterogeneous_vocab: False refuses a draft with another tokenizer, which else is translated.
    options: a dictionary for a drafter of others.
    backend_options: keys of vLLM's speculative_config without a counterpart here, for backend="vllm"; its methods VLLM_METHODS too.

    Raises ConfigError on anything out of range or contradictory.
    """

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    num_prediction_tokens: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_cached_requests: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None
    shared: bool | None = None
    corpus: str | None = None
    verify: str | None = None
    adaptive: bool = True
    draft_temperature: float | None = None
    max_model_len: int | None = None
    revision: str | None = None
    quantization: str | None = None
    use_heterogeneous_vocab: bool | None = None
    options: Mapping[str, Any] | None = None
    drafters: Seq[str | Mapping[str, Any] | SpeculativeConfig] | None = None
    backend_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("model", "revision", "corpus"):
            text(name, getattr(self, name))
        self._settle_method()
        kinds = {kind(self.method)}
        if self.method == "hybrid":
            self._settle_drafters()
            kinds |= {kind(each.method) for each in self.drafters or () if isinstance(each, SpeculativeConfig)}
        for name, owners in OWNERS.items():
            if getattr(self, name) is not None and kinds.isdisjoint(owners):
                owner = "a drafter of others" if owners == ("foreign",) else " and ".join(owners)
                raise ConfigError(f"{name}={getattr(self, name)!r} has no effect with method={self.method!r}: it belongs to {owner}")
        if self.method == "ngram":
            self._settle_ngram()
        if self.method in ("suffix", "corpus"):
            self._settle_suffix()
        self._settle_lengths()
        if self.verify is not None and self.verify not in VERIFY_RULES:
            raise ConfigError(f"verify={self.verify!r} is not a rule: {nearest(str(self.verify), VERIFY_RULES)}")
        flag("adaptive", self.adaptive)
        if self.draft_temperature is not None:
            number("draft_temperature", self.draft_temperature, 0.0, 1e4)
        if self.method == "quantised" and self.quantization is None:
            self._put("quantization", "int8")
        quantization("quantization", self.quantization)
        if self.use_heterogeneous_vocab is not None:
            flag("use_heterogeneous_vocab", self.use_heterogeneous_vocab)
        if self.max_model_len is not None:
            integer("max_model_len", self.max_model_len, 1, 1 << 31)
        for name in ("options", "backend_options"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be a dictionary: it is handed on as it is")

    def check_native(self) -> None:
        """Raises ConfigError on what only another backend can do."""
        if self.method in VLLM_METHODS:
            raise ConfigError(f"method={self.method!r} is not available in the native engine: use backend='vllm', or method='draft_model'")
        if self.backend_options:
            raise ConfigError(f"backend_options={dict(self.backend_options)!r} have no effect in the native engine: use backend='vllm'")

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen for everybody else

    def _settle_method(self) -> None:
        """The method, from what names it: itself, `model`, `corpus`, the lookup bounds, or the forms of vLLM."""
        method, model = from_vllm(self.method, self.model)
        if method is None:
            lookup = self.prompt_lookup_max is not None or self.prompt_lookup_min is not None
            several = self.drafters is not None
            method = "hybrid" if several else "draft_model" if model else "corpus" if self.corpus else "ngram" if lookup else None
        if method is None:
            raise ConfigError("speculation has neither method nor model: set method='ngram' or model=DRAFT")
        check_method(method)
        self._put("method", method)
        self._put("model", model)
        if self.method in ("draft_model", "head") and not self.model:
            raise ConfigError(f"method={self.method!r} needs model=DRAFT: a directory, a GGUF file or a hub id")
        if self.method == "corpus" and not self.corpus:
            raise ConfigError("method='corpus' needs corpus=PATH: an index made by headstart index build")

    def _settle_drafters(self) -> None:
        """Each of several becomes a SpeculativeConfig of its own."""
        if not isinstance(self.drafters, (list, tuple)) or not self.drafters:
            raise ConfigError(f"drafters={self.drafters!r} must be what method='hybrid' chooses from: a list such as ['suffix', MODEL]")
        made = [self._settle_drafter(each) for each in self.drafters]
        self._put("drafters", tuple(made))
        twice = next((n for n in self.names if self.names.count(n) > 1), None)
        if twice:
            raise ConfigError(f"drafters: {twice!r} is there twice: leave one of them out")

    @property
    def names(self) -> list[str]:
        """What the drafters are called in statistics and in `SamplingParams.drafter`: their methods; of several models also which."""
        if self.method != "hybrid":
            return [str(self.method)]
        specs = [each for each in self.drafters or () if isinstance(each, SpeculativeConfig)]
        models = sum(each.model is not None for each in specs)
        return [f"{s.method}:{s.model.rstrip('/').rpartition('/')[2]}" if s.model and models > 1 else str(s.method) for s in specs]

    def _settle_drafter(self, given: Any) -> SpeculativeConfig:
        if isinstance(given, SpeculativeConfig):
            given = {f.name: value for f in fields(given) if f.init and (value := getattr(given, f.name)) != f.default}
            del given["num_prediction_tokens"]  # filled in anyway
        given = drafter_of(given) if isinstance(given, str) else given
        if not isinstance(given, Mapping):
            raise ConfigError(f"drafters: {given!r} must be a method, a model, or a dictionary of options")
        for name in ("verify", "adaptive", "num_prediction_tokens", "drafters"):
            if name in given:
                raise ConfigError(f"drafters: {name}={given[name]!r} holds for all of them: set it beside the list")
        method = kind(given.get("method", "draft_model" if "model" in given else "corpus" if "corpus" in given else "ngram"))
        if method in ("none", "hybrid", *VLLM_METHODS):
            raise ConfigError(f"drafters: {method!r} cannot be one of several: leave it out")
        shared = {name: getattr(self, name) for name, owners in OWNERS.items() if method in owners}
        shared["num_speculative_tokens"] = self.num_speculative_tokens
        return SpeculativeConfig.from_dict({**{name: value for name, value in shared.items() if value is not None}, **given})

    def _settle_ngram(self) -> None:
        for name in ("prompt_lookup_max", "prompt_lookup_min"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 1, 64)
        high = self.prompt_lookup_max or self.prompt_lookup_min or 4
        low = self.prompt_lookup_min or self.prompt_lookup_max or 2
        if low > high:
            raise ConfigError(f"prompt_lookup_min={low} is above prompt_lookup_max={high}")
        self._put("prompt_lookup_max", high)
        self._put("prompt_lookup_min", low)

    def _settle_suffix(self) -> None:
        factor, least = self.suffix_decoding_max_spec_factor, self.suffix_decoding_min_token_prob
        self._put("suffix_decoding_max_spec_factor", DEFAULT_SPEC_FACTOR if factor is None else factor)
        self._put("suffix_decoding_min_token_prob", DEFAULT_MIN_TOKEN_PROB if least is None else least)
        number("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, 0.0, 1e4, open_low=True)
        number("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 0.0, 1.0)
        if self.method != "suffix":
            return
        self._put("shared", False if self.shared is None else self.shared)
        flag("shared", self.shared)
        kept = self.suffix_decoding_max_cached_requests
        if kept is not None:
            integer("suffix_decoding_max_cached_requests", kept, 0, 1 << 31)
            if bool(kept) is not self.shared:
                advice = "set it above 0, or shared=False" if self.shared else "add shared=True if requests may see each other's outputs"
                raise ConfigError(f"suffix_decoding_max_cached_requests={kept} contradicts shared={self.shared}: {advice}")
        self._put("suffix_decoding_max_cached_requests", kept if kept is not None else 1000 if self.shared else 0)
        depth = self.suffix_decoding_max_tree_depth
        if depth is not None:
            integer("suffix_decoding_max_tree_depth", depth, 1, MAX_DRAFTS)
            if self.num_speculative_tokens is None:
                self._put("num_speculative_tokens", depth)
            elif isinstance(self.num_speculative_tokens, int) and self.num_speculative_tokens > depth:
                raise ConfigError(
                    f"num_speculative_tokens={self.num_speculative_tokens} is above suffix_decoding_max_tree_depth={depth}: "
                    "lower the one or raise the other"
                )

    def _settle_lengths(self) -> None:
        given = self.num_speculative_tokens
        if self.num_prediction_tokens is None:
            self._put("num_prediction_tokens", given or DEFAULT_PREDICTION_DRAFTS)
        else:
            integer("num_prediction_tokens", self.num_prediction_tokens, 1, MAX_DRAFTS)
        if given is None and self.method == "hybrid":
            self._put("num_speculative_tokens", max(each.num_speculative_tokens or 0 for each in self.drafters))  # type: ignore[union-attr]
        elif given is None:
            defaults = {
                "none": 0,
                "suffix": DEFAULT_SUFFIX_DRAFTS,
                "corpus": DEFAULT_SUFFIX_DRAFTS,
                "prediction": self.num_prediction_tokens,
            }
            self._put("num_speculative_tokens", defaults.get(str(self.method), DEFAULT_DRAFTS))
        elif self.method == "none":
            integer("num_speculative_tokens", given, 0, 0)
        else:
            integer("num_speculative_tokens", given, 1, MAX_DRAFTS)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], backend: str = "native") -> SpeculativeConfig:
        """Read vLLM's `speculative_config` dictionary: its keys act, or are refused by name with the nearest valid one."""
        out: dict[str, Any] = {}
        handed: dict[str, Any] = {}
        for raw, value in given.items():
            name = str(raw).replace("-", "_")
            if value is None:
                continue
            if name == "rejection_sample_method":
                rules = {"standard": "rejection", "block": "block"}
                if not isinstance(value, str) or value not in rules:
                    raise ConfigError(f"rejection_sample_method={value!r} is not lossless or not known: {nearest(str(value), rules)}")
                name, value = "verify", rules[value]
            elif name == "draft_sample_method":
                if value not in ("greedy", "probabilistic"):
                    raise ConfigError(f"draft_sample_method={value!r} must be 'greedy' or 'probabilistic'")
                if value == "probabilistic":
                    continue  # our default: the draft samples from its warped law and reports it
                name, value = "draft_temperature", 0.0
            elif name in _VLLM_KEYS and backend == "vllm":
                put_once(handed, name, value, str(raw))
                continue
            elif name in _REFUSED:
                if value is _HARMLESS.get(name):
                    continue  # asks for exactly what happens anyway
                raise ConfigError(f"speculative_config[{raw!r}]={value!r}: {_REFUSED[name]}")
            put_once(out, name, value, str(raw))
        if handed:
            out["backend_options"] = {**handed, **(out.get("backend_options") or {})}
        return cls(**out)

    def describe(self) -> str:
        """The start-up line: what runs."""
        if self.method == "none":
            return "speculation: off"
        length = f"up to k={self.num_speculative_tokens}{'' if self.adaptive else ' (not adaptive)'}"
        return f"speculation: {self._what()}, {length}, verify={self.verify or 'rejection (match for requests with a seed)'}"

    def _what(self) -> str:
        if self.method == "hybrid":
            return "the best of " + ", ".join(each._what() for each in self.drafters)  # type: ignore[union-attr]
        details = {
            "draft_model": f" {self.model}{f' in {self.quantization}' if self.quantization else ''}",
            "head": f" {self.model}{f' in {self.quantization}' if self.quantization else ''}",
            "ngram": f" (match {self.prompt_lookup_max}..{self.prompt_lookup_min})",
            "corpus": f" {self.corpus}",
            "quantised": f" {self.quantization}, the target's own weights",
            "suffix": " (shared between requests)" if self.shared else "",
        }
        return f"{self.method}{details.get(str(self.method), '')}"
