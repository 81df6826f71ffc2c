"""What a name stands for: a local checkpoint or config.json, a well-known model, or a hub id of which the config alone is fetched."""

from __future__ import annotations

import difflib
import json
from functools import cache
from pathlib import Path
from typing import Any

from headstart.core.errors import ModelError, first_line
from headstart.plan.shape import Shape, read_shape

_KNOWN = Path(__file__).with_name("known.json")
_VARIANTS = ("-instruct", "-chat", "-it", "-pt", "-base", "-hf", "-2507", "-thinking")  # of one size: the same config


def find_shape(model: str, token: str | None = None) -> tuple[Shape, str]:
    """The shape of a model, and where its config is from in words. Raises ModelError with what to do."""
    path = Path(model).expanduser()
    try:
        local = bool(model.strip()) and path.exists()
    except OSError:
        local = False
    if local:
        return read_shape(model, _read_local(path)), "its config"
    known = _table().get(_plain(model))
    if known is not None:
        return read_shape(_hub_name(model, known["id"]), known["config"]), f"built-in copy of the config.json of {known['id']}"
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ModelError(f"{model!r} is no file, no built-in model and no hub id (org/name): {_advice(model)}")
    return read_shape(model, _from_hub(model, token)), f"config.json of {model} on the hub"


def names() -> list[str]:
    """The built-in models."""
    return [entry["id"] for entry in _entries()]


@cache
def _entries() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(_KNOWN.read_text(encoding="utf-8"))
    return entries


@cache
def _table() -> dict[str, dict[str, Any]]:
    return {_plain(name): entry for entry in _entries() for name in (entry["id"], *entry.get("also", ()))}


def _plain(name: str) -> str:
    """A name without its organisation and its variant: what people call a model."""
    return _stem(name).lower().rpartition("/")[2].removeprefix("meta-").replace("_", "-").replace(" ", "-")


def _stem(name: str) -> str:
    """A name without its variants at the end."""
    while ending := next((v for v in _VARIANTS if name.lower().endswith(v)), None):
        name = name[: -len(ending)]
    return name


def _hub_name(said: str, hub_id: str) -> str:
    """What to call a built-in model that the user called so: where no organisation was said, its own, and the variant that was."""
    if "/" in said:
        return said
    variant = said[len(_stem(said)) :]
    return _stem(hub_id) + variant if variant else hub_id


def _advice(model: str) -> str:
    close = difflib.get_close_matches(_plain(model), list(_table()), n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(_table()[c]['id'] for c in close)}?"
    return "name a folder with config.json, a hub id, or one of headstart plan --list"


def _read_local(path: Path) -> dict[str, Any]:
    if path.suffix == ".gguf":
        from headstart.models.gguf import GGUFFile

        return GGUFFile(path).config()
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        inside = sorted(path.glob("*.gguf"))
        if len(inside) == 1:
            return _read_local(inside[0])
        raise ModelError(f"{path} has no config.json: name a folder or file that has one, or a GGUF file") from None
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{file} is not a readable config.json ({first_line(e)})") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds a {type(config).__name__}, not the fields of a config.json")
    return config


def _from_hub(model: str, token: str | None) -> dict[str, Any]:
    from huggingface_hub import hf_hub_download

    try:
        return _read_local(Path(hf_hub_download(model, "config.json", token=token)))
    except ModelError:
        raise
    except Exception as e:  # not found, gated, offline: the hub library has an exception for each
        raise ModelError(f"the config of {model!r} did not come from the hub ({first_line(e)}); {_advice(model)}") from None
