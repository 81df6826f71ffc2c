"""Two faults of vLLM 0.32's build for CPUs, mended in each of its processes; `installation.environment` makes it a plugin of vLLM.

With drafts, temperature, top_k and top_p of a request are spread over its rows by a kernel that writes into a copy and throws it away
unless the numbers are int64: rows were then sampled at whatever memory held. And top_k alone ends the engine in a step in which nobody
has a draft. A build without the faults is left alone.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """vLLM calls this once in every process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.utils import cpu_triton_utils

    kernel: Any = getattr(cpu_triton_utils, "_expand_kernel_impl", None)
    if kernel is not None and not _works(kernel):
        kernel.__code__ = _expand.__code__  # in place: others may hold the function already
    from vllm.v1.sample.ops import topk_topp_sampler

    filters: Any = topk_topp_sampler
    filters.apply_top_k_only = _rows_only(filters.apply_top_k_only)


def _rows_only(keep_top_k: Any) -> Any:
    """The same filter, which is not asked about a step without rows."""

    def kept(logits: Any, *rest: Any, **named: Any) -> Any:
        return keep_top_k(logits, *rest, **named) if len(logits) else logits

    return kept


def _works(kernel: Any) -> bool:
    import torch

    output = torch.zeros(3)
    try:
        kernel(output, torch.tensor([0.5, 0.0]), torch.tensor([2, 3], dtype=torch.int32), 0, 1)
    except Exception:  # the library behind it is not loaded yet
        return False
    return bool((output == torch.tensor([0.5, 0.5, 1.0])).all())


def _expand(output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None) -> None:
    """output [tokens]: each of input_val [B] as often as its row has tokens, with `replace_from` replaced. Names are vLLM's."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(input_val.masked_fill(input_val == replace_from, replace_to).repeat_interleave(counts))
