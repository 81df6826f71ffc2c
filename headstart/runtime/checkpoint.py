"""Checkpoints: where a model's files are, and its config, tensors and tokenizer. Safetensors and GGUF; never pickle.

A checkpoint is a directory, a .gguf file, or a hub id that resolves to a directory in the hub's cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from headstart.core.errors import ModelError, first_line
from headstart.models.gguf import GGUFFile
from headstart.ops.quant import Weight, quantise

# What is fetched from the hub: files at the top of the repository, never a second copy of the weights in another form.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
_UNWANTED = ["*/*", "consolidated*"]

# What weights may be stored as. Anything else is a quantised form whose scales would be lost.
_STORED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Checkpoint:
    """A resolved checkpoint. `tensor(name)` returns one tensor as stored; `eos_ids` are all ids that end a text."""

    path: Path
    config: dict[str, Any]
    eos_ids: list[int]
    tensor: Callable[[str], Tensor]
    tensor_names: list[str]
    gguf: GGUFFile | None = None
    notes: list[str] = field(default_factory=list)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, from the headers of the files."""
        return self.gguf.shapes() if self.gguf else _stored_shapes(self.path)

    @property
    def fits_bf16(self) -> bool:
        """Whether its matrices are stored in bfloat16 or coarser, so that bfloat16 holds what they say."""
        if self.gguf is not None:
            return self.gguf.coarse
        return str(self.config.get("dtype") or self.config.get("torch_dtype")).removeprefix("torch.") == "bfloat16"

    def quantised(self, name: str, kind: str, device: torch.device) -> Weight:
        """A matrix in "int8" or "int4" on the device, as stored where it is stored so; a vector in fp32. Raises ModelError."""
        blocks = self.gguf.blocks(name, kind) if self.gguf is not None else None
        if blocks is None:
            tensor = convert(self.tensor(name), name, torch.float32, device)
            return quantise(tensor, kind) if tensor.ndim == 2 else tensor
        for scales in (blocks.scale, blocks.minimum):
            if scales is not None:
                convert(scales, name, torch.float32, device)
        return blocks.to(device)


def resolve(model: str, revision: str | None = None, token: str | None = None) -> Path:
    """The local path of a directory, a GGUF file or a hub id (downloaded if it is not cached). Raises ModelError."""
    path = Path(model).expanduser()
    try:
        is_file, is_dir = path.is_file(), path.is_dir()
    except OSError as e:  # a text far too long for a name, say
        raise ModelError(f"{model[:60]!r}… cannot be a path ({e.strerror}): pass a directory, a .gguf file or a hub id") from None
    if is_file:
        if path.suffix != ".gguf":
            raise ModelError(f"{model} is a file but not GGUF: pass a directory with safetensors, a .gguf file or a hub id")
        return path
    if is_dir:
        return path
    if model.count("/") > 1 or model.startswith((".", "/", "~")) or model.endswith(".gguf"):
        raise ModelError(f"{model} does not exist: pass a directory, a .gguf file or a hub id such as org/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, token=token, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as e:  # not found, gated, offline: the hub library has an exception for each
        raise ModelError(f"{model!r} is neither a local path nor a model the hub gave: {first_line(e)}") from None


def open_checkpoint(model: str, revision: str | None = None, token: str | None = None) -> Checkpoint:
    """Open a checkpoint for reading. Raises ModelError with the file and what is wrong with it."""
    path = resolve(model, revision, token)
    if path.is_dir() and not (path / "config.json").exists():
        inside = sorted(path.glob("*.gguf"))
        if len(inside) != 1:
            what = f"{len(inside)} GGUF files: name one of them" if inside else "no config.json and no GGUF file"
            raise ModelError(f"{path} has {what}")
        path = inside[0]
    return _open_gguf(path) if path.is_file() else _open_safetensors(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    note = f"{path.name}: GGUF weights ({file.quantisation}) are dequantised, and what runs is the dequantised model"
    config = file.config()
    return Checkpoint(path, config, _within(file.eos_ids(), config, path), file.tensor, file.names(), file, [note])


def _open_safetensors(path: Path) -> Checkpoint:
    config = _read_json(path / "config.json")
    where = _tensor_files(path)
    handles: dict[Path, Any] = {}

    def tensor(name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        if name not in where:
            raise ModelError(f"{path} has no tensor {name!r}: is it complete?")
        file = where[name]
        try:
            if file not in handles:
                handles[file] = safe_open(file, framework="pt")
            return handles[file].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as e:
            raise ModelError(f"{file} is broken or truncated ({e}): fetch it again") from None

    # A model made for benchmarks says so (benchmarks/grow.py), and nobody who measures it may overlook that.
    notes = [f"{path.name}: {config['headstart_grown']}"] if config.get("headstart_grown") else []
    return Checkpoint(path, config, _eos_ids(path, config), tensor, list(where), notes=notes)


def _tensor_files(path: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index of a sharded checkpoint or the header of a single file."""
    from safetensors import SafetensorError, safe_open

    index = path / "model.safetensors.index.json"
    if index.exists():
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names or not all(isinstance(f, str) and _inside(f) for f in names.values()):
            raise ModelError(f"{index} has no weight_map from tensors to files of this folder: fetch it again")
        missing = sorted({f for f in names.values() if not (path / f).exists()})
        if missing:
            raise ModelError(f"{index} names {len(missing)} files that are not there, first {missing[0]}: fetch them again")
        return {name: path / file for name, file in names.items()}
    files = sorted(path.glob("model*.safetensors")) or sorted(path.glob("*.safetensors"))
    if not files:
        pickles = [*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")]
        hint = "; pickle files are not loaded, convert them to safetensors" if pickles else ""
        raise ModelError(f"{path} holds no safetensors file{hint}")
    where = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as f:
                where.update({name: file for name in f.keys()})  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError, ValueError) as e:
            raise ModelError(f"{file} is broken or truncated ({e}): fetch it again") from None
    return where


def _stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(set(_tensor_files(path).values())):
        with safe_open(file, framework="pt") as f:
            shapes |= {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118 - not a dict
    return shapes


def _inside(file: str) -> bool:
    """Whether a name from an index stays in the checkpoint's folder."""
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def _eos_ids(path: Path, config: dict[str, Any]) -> list[int]:
    generation = path / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = config.get("eos_token_id") if eos is None else eos
    if eos is None:
        return []
    ids = eos if isinstance(eos, list) else [eos]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelError(f"{path}: eos_token_id={eos!r} in its config must be an id or a list of them")
    return _within(list(ids), config, path)


def _within(eos: list[int], config: dict[str, Any], path: Path) -> list[int]:
    """The ids, if the vocabulary has them: an end that cannot come would be no end. Raises ModelError."""
    rows = config.get("vocab_size")
    if isinstance(rows, int) and (bad := [i for i in eos if not 0 <= i < rows]):
        raise ModelError(f"{path}: end-of-text id {bad[0]} is not one of its {rows} ids: fetch it again")
    return eos


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{path} is not readable JSON ({first_line(e)})") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, not a JSON object: fetch it again")
    return content


def convert(tensor: Tensor, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A stored tensor in the model's dtype on its device. Raises ModelError when it holds NaN or infinity, or is quantised."""
    if tensor.dtype not in _STORED:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(f"tensor {name!r} is stored as {kind}: quantised safetensors are not supported, use the full checkpoint or GGUF")
    out = tensor.to(device=device, dtype=dtype)
    if not bool(torch.isfinite(out.sum(dtype=torch.promote_types(dtype, torch.float32)))):
        raise ModelError(f"tensor {name!r} holds NaN or infinite values in {str(dtype).removeprefix('torch.')}: the checkpoint is damaged")
    return out
