"""Configuration: old and foreign names act, contradictions and unknown keys are refused, no bad value gets through.

Whatever a user passes, the answer is a configuration or a ConfigError that names the argument: never a TypeError from
somewhere inside, and never silence.
"""

import math
from dataclasses import FrozenInstanceError, fields

import pytest

from headstart.core.config import EngineConfig, SpeculativeConfig, build_config, parse_bytes
from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams

T, D = "org/target", "org/draft"


def refused(make, *words: str) -> str:
    """The message of the ConfigError that `make` must raise, which contains all `words`."""
    with pytest.raises(ConfigError) as error:
        make()
    message = str(error.value)
    assert all(word in message for word in words), message
    return message


def build(**arguments) -> EngineConfig:
    return build_config(T, arguments)[0]


# The forms of other engines


def test_plain():
    """Only a model: no speculation, the documented defaults, no notes."""
    config, notes = build_config(T, {})
    assert (config.model, config.speculative.method, config.speculative.num_speculative_tokens, notes) == (T, "none", 0, [])
    assert (config.max_num_seqs, config.block_size, config.enable_prefix_caching) == (64, 16, True)


def test_old_vllm_call():
    """LLM(model=T, speculative_model=D, num_speculative_tokens=5, gpu_memory_utilization=0.9) works and says the new form."""
    config, notes = build_config(T, {"speculative_model": D, "num_speculative_tokens": 5, "gpu_memory_utilization": 0.9})
    spec = config.speculative
    assert (spec.method, spec.model, spec.num_speculative_tokens, spec.verify) == ("draft_model", D, 5, None)
    assert config.gpu_memory_utilization == 0.9
    assert len(notes) == 1 and "speculative_config=" in notes[0] and D in notes[0]


def test_old_vllm_ngram():
    """speculative_model="[ngram]" with its lookup bounds."""
    spec = build(speculative_model="[ngram]", num_speculative_tokens=3, ngram_prompt_lookup_max=4, ngram_prompt_lookup_min=1).speculative
    assert (spec.method, spec.model, spec.num_speculative_tokens) == ("ngram", None, 3)
    assert (spec.prompt_lookup_max, spec.prompt_lookup_min) == (4, 1)


@pytest.mark.parametrize("name", ["speculative_model", "draft_model", "spec_model", "assistant_model"])
def test_old_names_of_the_draft(name):
    """A draft alone turns speculation on, with the default length."""
    spec = build(**{name: D}).speculative
    assert (spec.method, spec.model, spec.num_speculative_tokens) == ("draft_model", D, 5)


@pytest.mark.parametrize("name", ["num_speculative_tokens", "spec_tokens", "num_assistant_tokens", "num_draft_tokens", "draft_max"])
def test_old_names_of_the_length(name):
    """They act; alone they are refused, since nothing drafts."""
    assert build(speculative_model=D, **{name: 7}).speculative.num_speculative_tokens == 7
    refused(lambda: build(**{name: 7}), "num_speculative_tokens", "nothing drafts")


def test_old_names_set_to_none_mean_nothing():
    """What a wrapper passes through unset."""
    assert build(speculative_model=None, num_speculative_tokens=None).speculative.method == "none"


def test_vllm_dictionary():
    """speculative_config as vLLM has it, '-' for '_' allowed, None values skipped."""
    given = {"method": "draft_model", "model": D, "num-speculative-tokens": 4, "max-model-len": 512, "revision": None}
    config, notes = build_config(T, {"speculative_config": given})
    spec = config.speculative
    assert (spec.method, spec.model, spec.num_speculative_tokens, spec.max_model_len) == ("draft_model", D, 4, 512)
    assert notes == []
    ngram = build(speculative_config={"method": "ngram", "prompt_lookup_max": 3, "num_speculative_tokens": 2}).speculative
    assert (ngram.method, ngram.prompt_lookup_max, ngram.num_speculative_tokens) == ("ngram", 3, 2)


def test_speculative_config_object():
    """A ready SpeculativeConfig is taken as it is, and nothing beside it."""
    spec = SpeculativeConfig(method="ngram", verify="match")
    assert build(speculative_config=spec).speculative is spec
    refused(lambda: build(speculative_config=spec, num_speculative_tokens=3), "speculative_config", "num_speculative_tokens")


def test_draft_sample_method():
    """greedy is temperature 0; probabilistic is what happens anyway; anything else is refused."""
    of = lambda value: SpeculativeConfig.from_dict({"model": D, "draft_sample_method": value})  # noqa: E731
    assert of("greedy").draft_temperature == 0.0
    assert of("probabilistic").draft_temperature is None
    refused(lambda: of("gumbel"), "draft_sample_method", "gumbel")


def test_rejection_sample_method():
    """standard and block act; the lossy ones are refused by name."""
    of = lambda value: SpeculativeConfig.from_dict({"model": D, "rejection_sample_method": value})  # noqa: E731
    assert (of("standard").verify, of("block").verify) == ("rejection", "block")
    for lossy in ("synthetic", "fly"):
        refused(lambda lossy=lossy: of(lossy), "rejection_sample_method", lossy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("draft_tensor_parallel_size", 2),
        ("disable_by_batch_size", 8),
        ("num_speculative_tokens_per_batch_size", [(1, 5)]),
        ("quantization", "fp8"),
        ("parallel_drafting", True),
    ],
)
def test_vllm_keys_that_cannot_act_are_refused(name, value):
    """By name and with the reason; at the value that asks for what happens anyway they pass."""
    refused(lambda: SpeculativeConfig.from_dict({"model": D, name: value}), name)
    harmless = {"draft_tensor_parallel_size": 1, "parallel_drafting": False}.get(name)
    assert SpeculativeConfig.from_dict({"model": D, name: harmless}) == SpeculativeConfig(model=D)


def test_vllm_engine_arguments():
    """Those that ask for what happens anyway pass, others are refused with the reason."""
    build(tensor_parallel_size=1, trust_remote_code=False, enforce_eager=True, tokenizer_mode="auto", quantization=None)
    refused(lambda: build(tensor_parallel_size=2), "tensor_parallel_size=2", "one device")
    refused(lambda: build(trust_remote_code=True), "trust_remote_code")
    refused(lambda: build(quantization="awq"), "quantization")
    refused(lambda: build(speculative_model=D, speculative_draft_tensor_parallel_size=2), "draft_tensor_parallel_size")
    assert build(speculative_model=D, speculative_draft_tensor_parallel_size=1).speculative.model == D


# Contradictions and unknown names


def test_both_forms():
    """Old and new form side by side: equal values pass, different ones are refused."""
    modern = {"model": D, "num_speculative_tokens": 4}
    assert build(speculative_config=modern, num_speculative_tokens=4, speculative_model=D).speculative.num_speculative_tokens == 4
    assert build(speculative_config={"model": D}, num_speculative_tokens=4).speculative.num_speculative_tokens == 4
    refused(lambda: build(speculative_config=modern, num_speculative_tokens=5), "contradicts", "num_speculative_tokens")
    refused(lambda: build(speculative_config=modern, speculative_model="other"), "contradicts", "other")
    refused(lambda: build(spec_tokens=3, draft_max=4, speculative_model=D), "contradicts")


def test_one_key_in_two_spellings():
    """'-' and '_' of one key with different values: refused, by either way in."""
    given = {"model": D, "num-speculative-tokens": 3, "num_speculative_tokens": 4}
    refused(lambda: SpeculativeConfig.from_dict(given), "contradicts")
    refused(lambda: build(speculative_config=given), "contradicts")


def test_method_contradicts_model():
    """A draft checkpoint with ngram, "[ngram]" with draft_model, draft_model without a draft, anything with none."""
    refused(lambda: SpeculativeConfig(method="ngram", model=D), "model", "ngram")
    refused(lambda: SpeculativeConfig(method="draft_model", model="[ngram]"), "contradicts")
    refused(lambda: SpeculativeConfig(method="draft_model"), "model=DRAFT")
    refused(lambda: SpeculativeConfig(method="none", model=D), "model")
    refused(lambda: SpeculativeConfig(method="none", num_speculative_tokens=3), "num_speculative_tokens")
    refused(lambda: SpeculativeConfig(), "method")
    refused(lambda: build(speculative_model="[ngram]", spec_method="draft_model"), "contradicts")


@pytest.mark.parametrize("name", ["prompt_lookup_max", "prompt_lookup_min"])
def test_ngram_knobs_belong_to_ngram(name):
    """With a draft model they would be ignored, so they are errors; alone they choose ngram."""
    refused(lambda: SpeculativeConfig(model=D, **{name: 3}), name, "ngram")
    refused(lambda: SpeculativeConfig(method="none", **{name: 3}), name)
    assert SpeculativeConfig(**{name: 3}).method == "ngram"


@pytest.mark.parametrize(("name", "value"), [("draft_temperature", 0.5), ("revision", "main"), ("max_model_len", 100), ("model", D)])
def test_draft_knobs_belong_to_a_draft_model(name, value):
    """With ngram they would be ignored, so they are errors."""
    refused(lambda: SpeculativeConfig(method="ngram", **{name: value}), name, "draft_model")


def test_lookup_bounds():
    """One set, the other copies it; both default to 4 and 2; the shortest may not exceed the longest."""

    def bounds(**given):
        config = SpeculativeConfig(method="ngram", **given)
        return config.prompt_lookup_max, config.prompt_lookup_min

    assert bounds() == (4, 2)
    assert bounds(prompt_lookup_max=7) == (7, 7)
    assert bounds(prompt_lookup_min=3) == (3, 3)
    assert bounds(prompt_lookup_max=5, prompt_lookup_min=1) == (5, 1)
    refused(lambda: bounds(prompt_lookup_max=2, prompt_lookup_min=3), "prompt_lookup_min=3", "prompt_lookup_max=2")


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (lambda: build(num_speculative_token=3), "num_speculative_token", "num_speculative_tokens"),
        (lambda: build(block_sise=3), "block_sise", "block_size"),
        (lambda: build(max_num_seq=3), "max_num_seq", "max_num_seqs"),
        (lambda: build(speculative_config={"method": "ngram", "prompt_lookup_maximum": 3}), "prompt_lookup_maximum", "prompt_lookup_max"),
        (lambda: SpeculativeConfig(methods="ngram"), "methods", "method"),
        (lambda: SpeculativeConfig(method="ngrams"), "ngrams", "ngram"),
        (lambda: SpeculativeConfig(model=D, verify="rejecting"), "rejecting", "rejection"),
        (lambda: SamplingParams(temperatur=1.0), "temperatur", "temperature"),
        (lambda: SamplingParams(max_token=1), "max_token", "max_tokens"),
        (lambda: EngineConfig(T, dtype="bfloat"), "bfloat", "bfloat16"),
    ],
)
def test_unknown_names_point_to_the_nearest(make, wrong, right):
    """The message has what was written and what was probably meant."""
    refused(make, repr(wrong), f"did you mean {right!r}?")


def test_unknown_method_lists_what_there_is():
    """Methods of other engines are not silently dropped."""
    refused(lambda: SpeculativeConfig(method="medusa"), "medusa", "draft_model", "ngram")
    refused(lambda: build(speculative_config={"method": "eagle", "model": D}), "eagle", "draft_model", "backend='vllm'")
    refused(lambda: build(speculative_config="ngram"), "speculative_config")
    refused(lambda: build(speculative_config={"num_speculative_tokens": 4}), "nothing drafts")


# Values

JUNK = [math.nan, math.inf, -math.inf, -1.5, -(10**30), 10**30, 10**400, "x", "5", b"x", [], [1], {}, {"a": 1}, object(), 1 + 2j]

SAMPLING = {
    "n": [0, -1, 257, 1.0, True],
    "best_of": [0, -1, 257, 1.0, True],
    "presence_penalty": [-2.1, 2.1, True, "1", None],
    "frequency_penalty": [-2.1, 2.1, True, "1", None],
    "repetition_penalty": [0, 0.0, -1.0, 101, True, "1", None],
    "temperature": [-0.1, 1e5, True, "0.7"],
    "top_p": [0, 0.0, -0.1, 1.01, True],
    "top_k": [-2, 1.0, True, 1 << 31],
    "min_p": [-0.1, 1.01, True],
    "seed": [1.0, True, 1 << 64, -(1 << 63) - 1],
    "stop": [5, True, "", [""], ["a", 5], ["a", None], b"ab"],
    "stop_token_ids": [5, 0, True, "12", [-1], [1.0], [True], ["1"], [None]],
    "bad_words": [5, True, "ab", [""], ["a", 5], b"ab"],
    "ignore_eos": [1, 0, None, "yes"],
    "max_tokens": [0, -1, 1.0, True],
    "min_tokens": [-1, 1.0, True, None, 17],
    "logprobs": [-2, 1.0, True, 1 << 31],
    "prompt_logprobs": [-2, 1.0, True, 1 << 31],
    "detokenize": [1, 0, None, "yes"],
    "skip_special_tokens": [1, 0, None, "no"],
    "include_stop_str_in_output": [1, 0, None, "no"],
    "logits_processors": [5, True, print, [5], ["print"], {"a": print}],
    "truncate_prompt_tokens": [0, -2, 1.0, True],
    "structured_outputs": [
        *(5, True, "a+", ["a"], {"jsn": {}}, {"json": "{"}, {"json": "5"}, {"json": {"a": object()}}, {"regex": ""}),
        *({"regex": "a", "choice": ["a"]}, {"choice": []}, {"choice": "ab"}, {"regex": "a", "disable_any_whitespace": True}),
        *({"json_object": False}, {"json_object": 2}, {"grammar": 5}),
    ],
    "logit_bias": [5, True, "x", [1], {"a": 1}, {-1: 1}, {1: 101}, {1: "2"}, {1: math.nan}, {1: -math.inf}, {1.5: 1}, {True: 1}],
    "allowed_token_ids": [5, True, "12", [], [-1], [1.0], [True]],
    "num_speculative_tokens": [-1, 129, 1.0, True],
    "verify": ["", "typical", True, 1],
    "drafter": ["", True, 1],
    "prediction": ["", (), 5, True, b"ab", [-1], [1.0], [True], ["1"], [None]],
    "trace_drafts": [1, 0, None, "yes"],
}
SPECULATIVE = {
    "method": ["", "medusa", True, 1],
    "model": ["", True, 1],
    "num_speculative_tokens": [0, -1, 129, 1.0, True],
    "num_prediction_tokens": [0, -1, 129, 1.0, True],
    "prompt_lookup_max": [0, -1, 65, 1.0, True, False],
    "prompt_lookup_min": [0, -1, 65, 1.0, True, False],
    "suffix_decoding_max_tree_depth": [0, -1, 129, 1.0, True],
    "suffix_decoding_max_cached_requests": [-1, 1.0, True, 7],
    "suffix_decoding_max_spec_factor": [0, -1, True, "1"],
    "suffix_decoding_min_token_prob": [-0.1, 1.1, True, "1"],
    "shared": [0, 1, "yes"],
    "corpus": ["", True, 1],
    "verify": ["", "typical", True, 1],
    "adaptive": [1, 0, None, "yes"],
    "draft_temperature": [-0.1, 1e5, True, "0.7"],
    "max_model_len": [0, -1, 1.0, True],
    "revision": ["", True, 1],
    "quantization": ["", "fp8", "INT8", 8, True],
    "use_heterogeneous_vocab": [1, 0, "yes"],
    "options": ["a", [("a", 1)], 1, True],
    "drafters": [[], "suffix", 1, True, ["suffix", 1], [None], ["none"], ["hybrid"], ["suffix", "suffix"], [{"method": "eagle"}]],
    "backend_options": ["a", [("a", 1)], 1, True],
}
ENGINE = {
    "model": ["", None, True, 1],
    "tokenizer": ["", True, 1],
    "dtype": ["", "int8", None, True],
    "quantization": ["", "fp8", "INT8", 8, True],
    "max_model_len": [0, -1, 1.0, True],
    "max_num_seqs": [0, -1, None, 1.0, True],
    "max_num_batched_tokens": [0, -1, None, 1.0, True],
    "block_size": [0, -1, None, 1.0, True],
    "kv_cache_memory": [0, -1, 0.5, True, "", "0", "-1", "GiB", "1.2.3", ".", "2XB", "2 GiB 3", "nan", "inf", "9" * 400],
    "gpu_memory_utilization": [0, 0.0, -0.1, 1.01, True, "0.9"],
    "enable_prefix_caching": [1, 0, "yes"],
    "seed": [1.0, True, 1 << 64],
    "device": ["", "gpu", "cuda:", "cuda:-1", "cpu\n", None, True],
    "revision": ["", True, 1],
    "tokenizer_revision": ["", True, 1],
    "chat_template": [True, 1],
    "hf_token": [1],
    "logprobs_mode": ["", "raw", "raw_logits", None, True],
    "max_logprobs": [-2, 1.0, True, None],
    "backend": ["", "vLLM", "sglang", None, True, 1],
    "backend_options": ["a", [("a", 1)], 1, True, None, {"nnodes": 2}],
    "vllm_python": ["", "/bin/python", True, 1],
    "given": ["", "dtype", None, [], set(), True, 1],
    "speculative": [1, None, True, 1, "ngram", {"method": "ngram"}],
}

# What of JUNK is a fair value of a field after all: an empty list of stops, and any text for a name.
FAIR = {
    "stop": ["x", "5", [], ()],
    "stop_token_ids": [[], [1]],
    "allowed_token_ids": [[1]],
    "bad_words": [[]],
    "presence_penalty": [-1.5],
    "frequency_penalty": [-1.5],
    "logits_processors": [[]],
    "logit_bias": [{}],
    "prediction": ["x", "5", [1]],
    "options": [{}, {"a": 1}],
    "backend_options": [{}, {"a": 1}],
}
NAMES = ("model", "corpus", "drafter", "tokenizer", "revision", "tokenizer_revision", "chat_template", "hf_token")


def is_fair(name: str, value) -> bool:
    if name in NAMES:
        return isinstance(value, str)
    return any(type(value) is type(x) and value == x for x in FAIR.get(name, [])) or (name, value) == ("kv_cache_memory", "5")


def bad_values(name: str, own: list) -> list:
    """The field's own bad values and all junk that is not fair for it."""
    sizes = name == "kv_cache_memory"  # any positive integer is a size
    return [*own, *(x for x in JUNK if not is_fair(name, x) and not (sizes and isinstance(x, int) and x > 0))]


def let_through(make, values: list) -> list[str]:
    """The values for which `make` does not raise ConfigError, and what happened instead."""
    out = []
    for value in values:
        try:
            make(value)
            out.append(f"{value!r:.40} was accepted")
        except ConfigError:
            pass
        except Exception as error:
            out.append(f"{value!r:.40} gave {type(error).__name__}: {error}")
    return out


def test_every_field_is_covered():
    """A new field needs a line above."""
    for cls, table in ((SamplingParams, SAMPLING), (SpeculativeConfig, SPECULATIVE), (EngineConfig, ENGINE)):
        assert [f.name for f in fields(cls)] == list(table)


@pytest.mark.parametrize("name", SAMPLING)
def test_bad_sampling_values(name):
    """Every bad value of the field is a ConfigError, and the message names the field."""
    assert let_through(lambda value: SamplingParams(**{name: value}), bad_values(name, SAMPLING[name])) == []
    refused(lambda: SamplingParams(**{name: SAMPLING[name][0]}), name)


@pytest.mark.parametrize("name", SPECULATIVE)
def test_bad_speculative_values(name):
    """On the object and by the dictionary."""
    owners = {"prompt": {"method": "ngram"}, "suffix": {"method": "suffix"}, "shared": {"method": "suffix"}, "options": {"method": "a.b:C"}}
    base = {} if name in ("model", "corpus") else owners.get(name.partition("_")[0], {"model": D})
    values = bad_values(name, SPECULATIVE[name])
    assert let_through(lambda value: SpeculativeConfig(**{**base, name: value}), values) == []
    given = [value for value in values if value is not None]
    assert let_through(lambda value: SpeculativeConfig.from_dict({**base, name: value}), given) == []
    refused(lambda: SpeculativeConfig(**{**base, name: values[0]}), name)


@pytest.mark.parametrize("name", ENGINE)
def test_bad_engine_values(name):
    """On the object and, but for the model, as an argument of LLM."""
    values = bad_values(name, ENGINE[name])
    assert let_through(lambda value: EngineConfig(**{"model": T, name: value}), values) == []
    refused(lambda: EngineConfig(**{"model": T, name: values[0]}), name)
    if name not in ("model", "speculative"):
        given = [value for value in values if value is not None]
        assert let_through(lambda value: build(**{name: value}), given) == []


@pytest.mark.parametrize("name", ["rejection_sample_method", "draft_sample_method", "draft_tensor_parallel_size", "quantization"])
def test_bad_foreign_values(name):
    """Junk in a foreign key is a ConfigError too, unhashable junk included."""
    assert let_through(lambda value: SpeculativeConfig.from_dict({"model": D, name: value}), JUNK) == []


def test_bad_speculative_config():
    """Neither a dictionary nor a SpeculativeConfig, or a dictionary that says nothing."""
    assert let_through(lambda value: build(speculative_config=value), JUNK) == []


@pytest.mark.parametrize(
    ("cls", "good"),
    [
        (SamplingParams, {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 1, "seed": -5, "n": 256, "max_tokens": None}),
        (SamplingParams, {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 100, "min_tokens": 16, "logprobs": -1}),
        (SamplingParams, {"logit_bias": {"5": 100, 6: -100}, "allowed_token_ids": (0,), "truncate_prompt_tokens": -1, "best_of": 256}),
        (SamplingParams, {"structured_outputs": {"json": "{}"}, "bad_words": ("a",), "logits_processors": [print]}),
        (SamplingParams, {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}, "detokenize": False}),
        (SamplingParams, {"stop": "a", "stop_token_ids": (0,), "num_speculative_tokens": 0, "verify": "match"}),
        (SpeculativeConfig, {"model": D, "num_speculative_tokens": 128, "draft_temperature": 0, "max_model_len": 1}),
        (SpeculativeConfig, {"method": "none", "num_speculative_tokens": 0}),
        (EngineConfig, {"model": T, "gpu_memory_utilization": 1, "seed": None, "device": "cuda:3", "block_size": 1, "dtype": "half"}),
    ],
)
def test_limits_are_fair_values(cls, good):
    """The ends of each range are inside it; configurations are frozen."""
    made = cls(**good)
    with pytest.raises(FrozenInstanceError):
        made.seed = 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 3, "best_of": 2}, ("best_of=2", "n=3")),
        ({"min_tokens": 9, "max_tokens": 8}, ("min_tokens=9", "max_tokens=8")),
        ({"detokenize": False, "stop": "a"}, ("detokenize", "stop_token_ids")),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, ("ignore_eos", "structured_outputs")),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 1}, ("min_tokens", "structured_outputs")),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, ("allowed_token_ids", "structured_outputs")),
        ({"structured_outputs": {}}, ("exactly one", "none")),
        ({"structured_outputs": {"regex": "a", "json": {}}}, ("exactly one", "json, regex")),
    ],
)
def test_options_that_cannot_be_combined(options, words):
    refused(lambda: SamplingParams(**options), *words)


def test_stops_are_tuples():
    """However they were given."""
    assert SamplingParams(stop="ab").stop == SamplingParams(stop=["ab"]).stop == ("ab",)
    assert SamplingParams().stop == SamplingParams(stop=[]).stop == ()
    assert SamplingParams(stop_token_ids=[0, 3]).stop_token_ids == (0, 3)
    assert SamplingParams(stop=["a", "b"]).with_temperature(0.0) == SamplingParams(stop=("a", "b"), temperature=0.0)


def test_greedy_border():
    """vLLM's: below 1e-5 is argmax."""
    assert SamplingParams(temperature=0.0).greedy and SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (123, 123),
        (1e9, 10**9),
        ("123", 123),
        ("2GiB", 2 << 30),
        ("512MB", 512 * 10**6),
        ("1.5g", 1_500_000_000),
        (" 1 KiB ", 1024),
        ("3tib", 3 << 40),
        ("7b", 7),
    ],
)
def test_sizes(text, size):
    """Bytes, or text: GiB counts by 1024, GB and a bare letter by 1000."""
    assert parse_bytes("kv_cache_memory", text) == size


def test_one_kv_budget():
    """kv_cache_memory and gpu_memory_utilization exclude each other; vLLM's name for the first acts."""
    assert build(kv_cache_memory_bytes="2GiB").kv_cache_memory == 2 << 30
    refused(lambda: build(kv_cache_memory="2GiB", gpu_memory_utilization=0.5), "kv_cache_memory", "gpu_memory_utilization")
    refused(lambda: build(kv_cache_memory_bytes=1, kv_cache_memory=2), "contradicts")


def test_describe():
    """The start-up line says what runs."""
    assert SpeculativeConfig(method="none").describe() == "speculation: off"
    assert D in SpeculativeConfig(model=D).describe()
    line = SpeculativeConfig(method="ngram", num_speculative_tokens=7, verify="block").describe()
    assert all(word in line for word in ("ngram", "4..2", "k=7", "block"))


def test_several_drafters():
    """Each becomes a configuration of its own; what stands beside the list holds for those to which it applies."""
    given = {"drafters": ["suffix", "ngram", "corpus:idx", {"model": D, "num_speculative_tokens": 3}, "a/b", "my.module:Name"]}
    spec = SpeculativeConfig.from_dict({**given, "prompt_lookup_max": 3, "draft_temperature": 0.5, "verify": "block"})
    assert spec.method == "hybrid" and spec.num_speculative_tokens == 24
    assert [s.method for s in spec.drafters] == ["suffix", "ngram", "corpus", "draft_model", "draft_model", "my.module:Name"]
    assert [s.num_speculative_tokens for s in spec.drafters] == [24, 5, 24, 3, 5, 5]
    assert [s.prompt_lookup_max for s in spec.drafters] == [None, 3, None, None, None, None]
    assert [s.draft_temperature for s in spec.drafters] == [None, None, None, 0.5, 0.5, None]
    assert spec.drafters[2].corpus == "idx"
    assert spec.names == ["suffix", "ngram", "corpus", f"draft_model:{D.rpartition('/')[2]}", "draft_model:b", "my.module:Name"]
    assert "the best of suffix, ngram" in spec.describe()
    again = SpeculativeConfig(drafters=spec.drafters)
    assert [s.num_speculative_tokens for s in again.drafters] == [24, 5, 24, 3, 5, 5]
    assert SpeculativeConfig(method="hybrid", drafters=["suffix", D], num_speculative_tokens=4).num_speculative_tokens == 4
    refused(lambda: SpeculativeConfig(drafters=["suffix", D], prompt_lookup_max=3), "prompt_lookup_max", "ngram")
    refused(lambda: SpeculativeConfig(method="ngram", drafters=["suffix"]), "drafters", "hybrid")
    refused(lambda: SpeculativeConfig(drafters=[{"method": "suffix", "verify": "match"}]), "verify", "beside the list")
    refused(lambda: SpeculativeConfig(method="hybrid"), "drafters")
