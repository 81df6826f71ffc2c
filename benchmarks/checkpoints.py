"""The demo model as checkpoints that any engine loads: as it is, with noise on its weights, or with more layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headstart.models.gguf import GGUFFile


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], tokenizer: Any) -> None:
    """A checkpoint as the hub has them: config.json, generation_config.json, model.safetensors and the tokenizer's files."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    whole = {**{k: v for k, v in config.items() if v is not None}, "architectures": ["LlamaForCausalLM"], "torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(whole, indent=1))
    ends = {"eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)


def read(gguf: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], Any]:
    """(config, dequantised tensors, tokenizer) of a GGUF file."""
    file = GGUFFile(gguf)
    config = {**file.config(), "eos_token_id": file.eos_ids()}
    return config, {name: file.tensor(name).contiguous() for name in file.names()}, file.tokenizer()


def noisy(tensors: Mapping[str, torch.Tensor], noise: float) -> dict[str, torch.Tensor]:
    """The tensors with relative Gaussian noise on the matrices, always the same."""
    generator = torch.Generator().manual_seed(0)
    return {n: t + noise * t.std() * torch.randn(t.shape, generator=generator) if t.ndim == 2 else t for n, t in tensors.items()}


def unquantised_gguf(gguf: Path, out: Path, dtype: str) -> str:
    """The same model and metadata unquantised, for engines that would compute with quantised weights.

    dtype: float32 or bfloat16, of the matrices; vectors are always F32.
    """
    import gguf as library

    if out.exists():
        return str(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    reader = library.GGUFReader(gguf)
    writer = library.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kinds = field.types
        writer.add_key_value(field.name, field.contents(), kinds[0], kinds[-1] if kinds[0] == library.GGUFValueType.ARRAY else None)
    half, kind = dtype == "bfloat16", library.GGMLQuantizationType.BF16
    writer.add_file_type(library.LlamaFileType.MOSTLY_BF16 if half else library.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = library.quants.dequantize(tensor.data, tensor.tensor_type)
        if half and values.ndim == 2:
            writer.add_tensor(tensor.name, library.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(out)


def pruned(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], every: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Every so-manieth layer of a model alone: a cheap draft that was never trained to be one, and a bad one."""
    kept = range(0, config["num_hidden_layers"], every)
    out = {n: t for n, t in tensors.items() if not n.startswith("model.layers.")}
    for new, old in enumerate(kept):
        prefix = f"model.layers.{old}."
        out |= {f"model.layers.{new}.{n.removeprefix(prefix)}": t.clone() for n, t in tensors.items() if n.startswith(prefix)}
    return {**config, "num_hidden_layers": len(kept)}, out
