"""headstart: lossless speculative decoding of large language models.

Importing this package imports neither torch nor transformers; the names below load on first use.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Behind each of its tasks torch's OpenMP threads spin for milliseconds, on the very processors that the kernels want (docs/kernels.md).
# OpenMP reads how they should wait once, when torch is loaded. What a user has set stays.
WAITS_PASSIVELY = "OMP_WAIT_POLICY" not in os.environ and any(Path(__file__).parent.glob("kernels/_kernels*.so"))
if WAITS_PASSIVELY:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

if TYPE_CHECKING:
    from headstart.api import LLM
    from headstart.core.outputs import CompletionOutput, Logprob, RequestOutput
    from headstart.core.params import SamplingParams, StructuredOutputsParams
    from headstart.core.speculation import SpeculativeConfig
    from headstart.core.types import Proposal
    from headstart.draft.base import Drafter, LookupDrafter

_HOME = {
    "LLM": "headstart.api",
    "SamplingParams": "headstart.core.params",
    "StructuredOutputsParams": "headstart.core.params",
    "Drafter": "headstart.draft.base",
    "LookupDrafter": "headstart.draft.base",
    "Proposal": "headstart.core.types",
    "SpeculativeConfig": "headstart.core.speculation",
    "RequestOutput": "headstart.core.outputs",
    "CompletionOutput": "headstart.core.outputs",
    "Logprob": "headstart.core.outputs",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "Drafter",
    "Logprob",
    "LookupDrafter",
    "Proposal",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
