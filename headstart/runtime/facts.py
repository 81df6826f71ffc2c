"""What `headstart inspect` says of a checkpoint: read from its config, the headers of its files and its tokenizer, no weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.core.errors import ModelError, first_line
from headstart.models.decoder import ModelConfig
from headstart.models.head import is_head
from headstart.runtime.catalog import NATIVE, REFUSED, THROUGH
from headstart.runtime.checkpoint import Checkpoint, open_checkpoint
from headstart.runtime.loader import FAMILIES, check_loadable
from headstart.runtime.tokenizer import first_difference, load_tokenizer, real_vocab

_BYTES = {"float32": 4, "bfloat16": 2}


def describe(model: str, drafts: list[str], revision: str | None = None, token: str | None = None) -> dict[str, Any]:
    """Facts of a model, and for each draft whether it fits. Raises ModelError when the model cannot be read at all."""
    checkpoint = open_checkpoint(model, revision, token)
    tokenizer = _tokenizer(checkpoint)
    found = {"model": model, **_weights(checkpoint), **_architecture(checkpoint), "tokenizer": _tokenizer_facts(checkpoint, tokenizer)}
    if isinstance(relation := checkpoint.config.get("speculators_config"), Mapping):
        found["speculators_config"] = dict(relation)
    found["drafts"] = [_fit(d, found, tokenizer, token) for d in drafts]
    return found


def _weights(checkpoint: Checkpoint) -> dict[str, Any]:
    path = checkpoint.path
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    form = f"GGUF ({checkpoint.gguf.quantisation})" if checkpoint.gguf else "safetensors"
    return {
        "path": str(path),
        "format": form,
        "file_bytes": sum(f.stat().st_size for f in files),
        "parameters": sum(math.prod(shape) for shape in checkpoint.shapes().values()),
    }


def _architecture(checkpoint: Checkpoint) -> dict[str, Any]:
    """Sizes, and how it runs."""
    config = checkpoint.config
    kind = config.get("model_type")
    said: dict[str, Any] = {"model_type": kind, "eos_ids": checkpoint.eos_ids}
    try:
        check_loadable(checkpoint)
        if kind in FAMILIES:
            return {**said, "runs": NATIVE, **_sizes(FAMILIES[str(kind)].read_config(config))}
        return {**said, "runs": THROUGH, **_sizes_through(checkpoint.path)}
    except ModelError as e:
        return {**said, "runs": REFUSED, "reason": str(e)}


def _sizes(c: ModelConfig) -> dict[str, Any]:
    numbers, sliding = 2 * c.kv_heads * c.head_dim, sum(c.sliding)
    return {
        "context": c.max_len,
        "layers": c.layers,
        "hidden": c.hidden,
        "intermediate": c.intermediate,
        "heads": c.heads,
        "kv_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocabulary_rows": c.vocab_size,
        "window": c.window,
        "sliding_layers": sliding,
        "kv_bytes_per_token": {name: size * numbers * c.layers for name, size in _BYTES.items()},
        "kv_bytes_per_token_beyond_window": {name: size * numbers * (c.layers - sliding) for name, size in _BYTES.items()},
    }


def _sizes_through(path: Path) -> dict[str, Any]:
    """As far as the config tells; what layers truly keep is seen at load."""
    from transformers import AutoConfig

    from headstart.models.hf import refusal

    try:
        config = AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as e:
        raise ModelError(f"its config is not one that transformers knows ({first_line(e)})") from None
    if why := refusal(config):
        raise ModelError(why)
    text = config.get_text_config()
    get = lambda name: getattr(text, name, None)  # noqa: E731
    return {
        "context": get("max_position_embeddings"),
        "layers": get("num_hidden_layers"),
        "hidden": get("hidden_size"),
        "heads": get("num_attention_heads"),
        "kv_heads": get("num_key_value_heads") or get("num_attention_heads"),
        "vocabulary_rows": get("vocab_size"),
        "window": get("sliding_window"),
    }


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer, or the error there is instead."""
    try:
        return load_tokenizer(checkpoint)
    except ModelError as e:
        return e


def _tokenizer_facts(checkpoint: Checkpoint, tokenizer: Any) -> dict[str, Any]:
    if isinstance(tokenizer, ModelError):
        return {"error": str(tokenizer)}
    rows = checkpoint.config.get("vocab_size")
    ids = real_vocab(tokenizer, rows if isinstance(rows, int) else 1 << 62)
    return {
        "ids": ids,
        "padding_rows": rows - ids if isinstance(rows, int) else None,
        "bos": tokenizer.bos_token,
        "eos": tokenizer.eos_token,
        "begins_with_bos": tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id],
        "chat_template": bool(tokenizer.chat_template),
    }


def _fit(draft: str, target: Mapping[str, Any], tokenizer: Any, token: str | None) -> dict[str, Any]:
    """Whether a draft may draft for the target, and why not."""
    out: dict[str, Any] = {"draft": draft, "fits": False}
    try:
        checkpoint = open_checkpoint(draft, token=token)
        out |= _weights(checkpoint)
        if is_head(checkpoint.config):
            verifier = (checkpoint.config.get("speculators_config") or {}).get("verifier") or {}
            return out | {
                "fits": None,
                "why": f"a draft head, made for {verifier.get('name_or_path') or 'a target it does not name'}: a load tells",
            }
        check_loadable(checkpoint)
        if isinstance(tokenizer, ModelError):
            return out | {"why": f"the target has no tokenizer to compare with: {tokenizer}"}
        difference = first_difference(tokenizer, load_tokenizer(checkpoint))
    except ModelError as e:
        return out | {"why": str(e)}
    rows, ids = checkpoint.config.get("vocab_size", 0), target["tokenizer"]["ids"]
    if not difference and rows < ids:
        return out | {"why": f"{rows} vocabulary rows, the target has {ids} ids"}
    ratio = out["parameters"] / max(target["parameters"], 1)
    words = [f"another vocabulary ({difference}), so its drafts are translated"] if difference else []
    words += ["the draft is the larger of the two: are they swapped?"] if ratio > 1 else []
    return out | {"fits": True, "size_of_target": round(ratio, 4), "why": "; ".join(words) or None}
