"""The methods by which drafts are made: their names, here and elsewhere, and which options act with which of them."""

from __future__ import annotations

from headstart.core.checks import QUANTIZATIONS
from headstart.core.errors import ConfigError, nearest
from headstart.core.plugins import foreign_method, foreign_names

METHODS = ("none", "ngram", "suffix", "corpus", "prediction", "draft_model", "head", "quantised", "hybrid")
VLLM_METHODS = ("eagle", "mtp", "dflash", "dspark")  # heads that vLLM runs and the native engine does not
CHECKPOINT_METHODS = ("draft_model", "head", *VLLM_METHODS)

# Which options act with which methods. "foreign" stands for every drafter of others.
OWNERS: dict[str, tuple[str, ...]] = {
    "model": CHECKPOINT_METHODS,
    "revision": CHECKPOINT_METHODS,
    "quantization": (*CHECKPOINT_METHODS, "quantised"),
    "max_model_len": CHECKPOINT_METHODS,
    "draft_temperature": (*CHECKPOINT_METHODS, "quantised"),
    "use_heterogeneous_vocab": ("draft_model",),
    "prompt_lookup_max": ("ngram",),
    "prompt_lookup_min": ("ngram",),
    "corpus": ("corpus",),
    "shared": ("suffix",),
    "suffix_decoding_max_tree_depth": ("suffix",),
    "suffix_decoding_max_cached_requests": ("suffix",),
    "suffix_decoding_max_spec_factor": ("suffix", "corpus"),
    "suffix_decoding_min_token_prob": ("suffix", "corpus"),
    "options": ("foreign",),
    "drafters": ("hybrid",),
}


def kind(method: object) -> str:
    """The method, or "foreign" for every drafter of others."""
    return method if isinstance(method, str) and method in (*METHODS, *VLLM_METHODS) else "foreign"


def drafter_of(text: str) -> dict[str, str]:
    """The options that a drafter in one word stands for: a method, `corpus:INDEX`, a drafter of others, else a draft model, `MODEL:int8`
    with its weights in fewer bits."""
    head, colon, rest = text.partition(":")
    if head == "corpus" and colon:
        return {"method": "corpus", "corpus": rest}
    if head in ("quantised", "quantized") and colon:
        return {"method": "quantised", "quantization": rest}
    name = text.strip().strip("[]").replace("-", "_").lower()
    if name in METHODS:
        return {"method": name}
    if name == "quantized":
        return {"method": "quantised"}
    model, bits = split_bits(text)
    if bits:
        return {**drafter_of(model), "quantization": bits}
    return {"method": text} if foreign_method(text) else {"model": text}


def split_bits(text: str) -> tuple[str, str | None]:
    """`MODEL:int8` as (MODEL, "int8"); (text, None) where no such end is."""
    model, _, bits = text.rpartition(":")
    return (model, bits) if model and bits in QUANTIZATIONS else (text, None)


def from_vllm(method: str | None, model: str | None) -> tuple[str | None, str | None]:
    """(method, model) of vLLM's forms. Raises ConfigError on a contradiction and on a class that is none."""
    if model in ("[ngram]", "ngram"):  # the form of older vLLM
        if method not in (None, "ngram"):
            raise ConfigError(f"model={model!r} contradicts method={method!r}: leave one of them out")
        return "ngram", None
    if method == "custom_class":  # a class by its dotted name in `model`
        if not model or "." not in model:
            raise ConfigError(f"method='custom_class' needs model='package.module.Class', not {model!r}")
        return model if ":" in model else ":".join(model.rsplit(".", 1)), None
    return "head" if method == "eagle3" else method, model


def check_method(method: object) -> None:
    """Raises ConfigError, with the nearest name, on what is no method of ours, of vLLM or of others."""
    if method not in (*METHODS, *VLLM_METHODS) and foreign_method(method) is None:
        raise ConfigError(f"method={method!r} is not available: {nearest(str(method), (*METHODS, *foreign_names()))}")
