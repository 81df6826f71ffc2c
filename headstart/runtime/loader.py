"""From a checkpoint to a model on a device."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from headstart.core.errors import ModelError
from headstart.models import llama
from headstart.models.decoder import Decoder
from headstart.runtime.checkpoint import Checkpoint, convert

FAMILIES: dict[str, ModuleType] = {name: family for family in (llama,) for name in family.MODEL_TYPES}


def load_model(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Load the weights, tensor by tensor. Raises ModelError for an architecture or a file that cannot be used."""
    kind = checkpoint.config.get("model_type")
    if kind not in FAMILIES:
        raise ModelError(f"{checkpoint.path}: model_type {kind!r} is not supported yet; supported: {', '.join(FAMILIES)}")
    config = FAMILIES[kind].read_config(checkpoint.config)

    parameters = 0

    def source(name: str) -> Tensor:
        nonlocal parameters
        tensor = convert(checkpoint.tensor(name), name, dtype, device)
        parameters += tensor.numel()
        return tensor

    with torch.inference_mode():
        try:
            model = Decoder(config, source, dtype, device)
            model.parameters = parameters
            return model
        except (RuntimeError, IndexError) as e:
            raise ModelError(f"{checkpoint.path}: tensors do not fit config.json ({str(e).splitlines()[0]})") from None
