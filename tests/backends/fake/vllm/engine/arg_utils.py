from dataclasses import dataclass
from typing import Any


@dataclass
class EngineArgs:
    model: str
    dtype: str = "auto"
    max_model_len: Any = None
    max_num_seqs: Any = None
    kv_cache_memory_bytes: Any = None
    seed: int = 0
    tensor_parallel_size: int = 1
    structured_outputs_config: Any = None
    speculative_config: Any = None
    per_request_spec_decode_metrics: str = "none"
    additional_config: Any = None
    quantization: Any = None
