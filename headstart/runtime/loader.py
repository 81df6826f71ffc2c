"""From a checkpoint to a model on a device."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import torch
from tqdm import tqdm

from headstart.core.errors import ModelError, first_line
from headstart.kernels.library import active
from headstart.models import gemma, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3
from headstart.models.decoder import Decoder, ModelConfig
from headstart.models.head import Head, HeadConfig, is_head
from headstart.models.hf import HFDecoder
from headstart.models.native import supports
from headstart.ops.device import resolve_dtype
from headstart.ops.linear import Embedding, table_of
from headstart.ops.quant import Weight, quantise
from headstart.runtime.checkpoint import Checkpoint, convert

_FAMILIES = (llama, mistral, qwen2, qwen3, gemma, phi3, smollm3, olmo2, granite)
FAMILIES: dict[str, ModuleType] = {name: family for family in _FAMILIES for name in family.MODEL_TYPES}

# Buffers that old conversions stored beside the weights; they are computed from the config.
_NO_WEIGHTS = ("rotary_emb.inv_freq",)


# Each row of these is one token's: in 4 bits they cost more than they save.
_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


def load_model(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, quantization: str | None = None, max_len: int | None = None
) -> Decoder | HFDecoder:
    """Load the weights. Raises ModelError for an architecture or a file that cannot be used.

    Families listed in `FAMILIES` run on our own decoder, any other decoder of transformers on its own code.
    quantization: "int8" or "int4" for the matrices (those of the vocabulary always in 8 bits); None for the stored numbers in `dtype`.
    max_len: the longest text there will be, if it is shorter than the model's context: longrope goes by it.
    """
    check_loadable(checkpoint)
    kind = checkpoint.config["model_type"]
    if kind not in FAMILIES:
        return HFDecoder(checkpoint.path, dtype, device, quantization)
    config = FAMILIES[kind].read_config(checkpoint.config)
    if max_len is not None and max_len < config.max_len:
        config = replace(config, max_len=max_len)
    return _load_native(checkpoint, FAMILIES[kind], config, dtype, device, quantization)


def dtype_for(name: str, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    """The dtype asked for. "auto" is bfloat16 where the hardware computes in it, and where the kernels run the whole model and its weights
    are stored no finer: they read half the bytes of float32, and widen them on the way. Else float32."""
    dtype, family = resolve_dtype(name, device), FAMILIES.get(checkpoint.config["model_type"])
    if name != "auto" or device.type != "cpu" or family is None or active().handle is None or not checkpoint.fits_bf16:
        return dtype
    return torch.bfloat16 if supports(family.read_config(checkpoint.config)) else dtype


def check_loadable(checkpoint: Checkpoint) -> None:
    """Refuse what no model can be made of, whatever its family. Raises ModelError with what to do."""
    config, path = checkpoint.config, checkpoint.path
    if is_head(config):
        verifier = ((config.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path") or "its target"
        raise ModelError(f"{path} is a draft head, not a model: load {verifier} and give this as its draft")
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ModelError(f"{path}: model_type is {kind!r}: config.json must name what the model is, such as 'llama'")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ModelError(
            f"{path}: quantization_config ({method}) is not supported; supported are weights in float (quantization='int8' or "
            "'int4' makes them small at load) and GGUF files"
        )


def _load_native(
    checkpoint: Checkpoint, family: ModuleType, config: ModelConfig, dtype: torch.dtype, device: torch.device, quantization: str | None
) -> Decoder:
    """The weights tensor by tensor into our own decoder."""
    parameters = weight_bytes = 0
    bar = tqdm(total=len(checkpoint.tensor_names), desc="loading", unit="tensor", leave=False, delay=1, disable=None)
    unused = dict.fromkeys(checkpoint.tensor_names)

    def source(name: str) -> Weight:
        nonlocal parameters, weight_bytes
        if quantization is None or not name.endswith(("_proj.weight", *_VOCABULARY)):
            weight: Weight = convert(checkpoint.tensor(name), name, dtype, device)
        else:
            weight = checkpoint.quantised(name, "int8" if name in _VOCABULARY else quantization, device)
        parameters += weight.numel()
        weight_bytes += weight.nbytes
        unused.pop(name, None)
        bar.update()
        return weight

    with bar, torch.inference_mode():
        try:
            adapt = getattr(family, "adapt", None)  # of a family that stores its weights under other names
            model = Decoder(config, adapt(source, config) if adapt else source, dtype, device)
        except (RuntimeError, IndexError) as e:
            raise ModelError(f"{checkpoint.path}: tensors do not fit config.json ({first_line(e)})") from None
    left = [name for name in unused if not (name.endswith(_NO_WEIGHTS) or (config.tied and name == "lm_head.weight"))]
    if left:
        raise ModelError(
            f"{checkpoint.path}: {len(left)} tensors that its model_type does not use here, first {left[0]!r}: this is another model"
        )
    model.parameters, model.weight_bytes = parameters, weight_bytes
    return model


def load_head(
    checkpoint: Checkpoint,
    config: HeadConfig,
    embed: Embedding,
    vocab: int,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
) -> Head:
    """Load a draft head in the speculators layout. Raises ModelError for a file that cannot be used.

    embed: the target's embedding, which the head shares unless it brings its own. vocab: real ids of the target.
    quantization: "int8" or "int4" for the matrices.
    """
    names = dict.fromkeys(checkpoint.tensor_names)

    def source(name: str) -> Weight:
        names.pop(name, None)
        tensor = convert(checkpoint.tensor(name), name, dtype, device)
        return quantise(tensor.float(), quantization) if quantization and tensor.ndim == 2 else tensor

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
            embed = Embedding(table_of(source("embed_tokens.weight"), dtype), dtype)
        head = Head(config, source, ids.to(device), embed, dtype, device)
    if names:
        raise ModelError(
            f"{checkpoint.path}: {len(names)} tensors that no head uses here, first {next(iter(names))!r}: this is another model"
        )
    return head
