"""From a checkpoint to a model on a device."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from headstart.core.errors import ModelError, first_line
from headstart.models import gemma, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3
from headstart.models.decoder import Decoder
from headstart.runtime.checkpoint import Checkpoint, convert

_FAMILIES = (llama, mistral, qwen2, qwen3, gemma, phi3, smollm3, olmo2, granite)
FAMILIES: dict[str, ModuleType] = {name: family for family in _FAMILIES for name in family.MODEL_TYPES}

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
            adapt = getattr(FAMILIES[kind], "adapt", None)  # of a family that stores its weights under other names
            model = Decoder(config, adapt(source, config) if adapt else source, dtype, device)
        except (RuntimeError, IndexError) as e:
            raise ModelError(f"{checkpoint.path}: tensors do not fit config.json ({first_line(e)})") from None
    left = [name for name in unused if not (name.endswith(_NO_WEIGHTS) or (config.tied and name == "lm_head.weight"))]
    if left:
        raise ModelError(
            f"{checkpoint.path}: {len(left)} tensors that model_type {kind!r} does not use here, first {left[0]!r}: this is another model"
        )
    model.parameters = parameters
    return model
