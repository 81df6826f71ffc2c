"""headstart: lossless speculative decoding of large language models.

Importing this package imports neither torch nor transformers; the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import headstart.core.openmp  # noqa: F401 - before torch

__version__ = "0.1.0"

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
