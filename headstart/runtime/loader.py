"""From a checkpoint to a model on a device."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from headstart.core.errors import ModelError, first_line
from headstart.models import llama
from headstart.models.decoder import Decoder
from headstart.models.head import Head, HeadConfig
from headstart.runtime.checkpoint import Checkpoint, convert

FAMILIES: dict[str, ModuleType] = {name: family for family in (llama,) for name in family.MODEL_TYPES}

# Buffers that old conversions stored beside the weights; they are computed from the config.
_NO_WEIGHTS = ("rotary_emb.inv_freq",)


def load_model(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Load the weights, tensor by tensor. Raises ModelError for an architecture or a file that cannot be used."""
    kind = checkpoint.config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ModelError(f"{checkpoint.path}: model_type {kind!r} is not supported yet; supported: {', '.join(FAMILIES)}")
    if quantised := checkpoint.config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ModelError(
            f"{checkpoint.path}: quantization_config ({method}) is not supported for safetensors: use the full checkpoint or a GGUF file"
        )
    config = FAMILIES[kind].read_config(checkpoint.config)

    parameters = 0
    unused = dict.fromkeys(checkpoint.tensor_names)

    def source(name: str) -> Tensor:
        nonlocal parameters
        tensor = convert(checkpoint.tensor(name), name, dtype, device)
        parameters += tensor.numel()
        unused.pop(name, None)
        return tensor

    with torch.inference_mode():
        try:
            model = Decoder(config, source, dtype, device)
        except (RuntimeError, IndexError) as e:
            raise ModelError(f"{checkpoint.path}: tensors do not fit config.json ({first_line(e)})") from None
    left = [name for name in unused if not (name.endswith(_NO_WEIGHTS) or (config.tied and name == "lm_head.weight"))]
    if left:
        raise ModelError(
            f"{checkpoint.path}: {len(left)} tensors that model_type {kind!r} does not use here, first {left[0]!r}: this is another model"
        )
    model.parameters = parameters
    return model


def load_head(
    checkpoint: Checkpoint, config: HeadConfig, embed: Callable[[Tensor], Tensor], vocab: int, dtype: torch.dtype, device: torch.device
) -> Head:
    """Load a draft head in the speculators layout. Raises ModelError for a file that cannot be used.

    embed: the target's embedding, which the head shares unless it brings its own. vocab: real ids of the target.
    """
    names = dict.fromkeys(checkpoint.tensor_names)

    def source(name: str) -> Tensor:
        names.pop(name, None)
        return convert(checkpoint.tensor(name), name, dtype, device)

    count = config.draft_vocab
    ids = torch.arange(count)
    if "d2t" in names:
        ids = ids + checkpoint.tensor("d2t").long()
    if len(ids) != count or ids.unique().numel() != count or not 0 <= int(ids.min()) <= int(ids.max()) < config.layer.vocab_size:
        raise ModelError(f"{checkpoint.path}: d2t does not map {count} entries to different ids of the target's {config.layer.vocab_size}")
    if bool((ids >= vocab).any()):
        raise ModelError(f"{checkpoint.path}: the head's vocabulary holds id {int(ids.max())}, the target has {vocab} real ids")
    for name in ("d2t", "t2d"):
        names.pop(name, None)
    with torch.inference_mode():
        if "embed_tokens.weight" in names:
            table = source("embed_tokens.weight")
            embed = lambda tokens: torch.nn.functional.embedding(tokens, table)  # noqa: E731
        head = Head(config, source, ids.to(device), embed, dtype, device)
    if names:
        raise ModelError(
            f"{checkpoint.path}: {len(names)} tensors that no head uses here, first {next(iter(names))!r}: this is another model"
        )
    return head
