from dataclasses import dataclass
from enum import Enum
from typing import Any


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1


@dataclass
class StructuredOutputsParams:
    json: Any = None
    regex: Any = None
    choice: Any = None
    grammar: Any = None
    json_object: Any = None
    disable_any_whitespace: bool = False


@dataclass
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Any = None
    stop: Any = None
    stop_token_ids: Any = None
    bad_words: Any = None
    ignore_eos: bool = False
    max_tokens: Any = 16
    min_tokens: int = 0
    logprobs: Any = None
    prompt_logprobs: Any = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Any = None
    allowed_token_ids: Any = None
    structured_outputs: Any = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
