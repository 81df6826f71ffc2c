"""`headstart inspect`: what a checkpoint is, how it runs, and which drafts fit it. Loads no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument, Option


def inspect(
    model: Annotated[str, Argument(help="Directory, GGUF file or hub id.", metavar="MODEL")],
    *,
    draft: Annotated[list[str] | None, Option("--draft", "-d", help="A draft to compare with it; may be given again.", metavar="D")] = None,
    revision: Annotated[str | None, Option(help="Of a hub id: branch, tag or commit.", metavar="REV")] = None,
    hf_token: Annotated[str | None, Option("--hf-token", help="For gated models of the hub.", metavar="TOKEN")] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """What a model is: architecture, sizes, KV per token, tokenizer, and which of the given drafts fit it.

    headstart inspect MODEL --draft SMALLER
    """
    from headstart.runtime.facts import describe

    found = describe(model, draft or [], revision, hf_token)
    print(json.dumps(found) if as_json else "\n".join(_lines(found)))


def _lines(found: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, str]] = [
        ("model", found["model"]),
        ("weights", f"{found['parameters'] / 1e6:,.1f}M, {found['file_bytes'] / 2**20:,.0f} MiB of {found['format']}"),
        (
            "runs",
            {"native": "on headstart's own decoder", "transformers": "through transformers' code"}.get(
                found["runs"], "not: " + found.get("reason", "")
            ),
        ),
        ("model_type", str(found["model_type"])),
    ]
    if "layers" in found:
        heads = f"{found['heads']} heads, {found['kv_heads']} for keys"
        wide = f" of {found['head_dim']}" if found.get("head_dim") else ""
        rows.append(("shape", f"{found['layers']} layers, hidden {found['hidden']}, {heads}{wide}"))
        rows.append(("context", f"{found['context']:,} tokens" if found["context"] else "not said"))
    if found.get("window"):
        some = f" in {found['sliding_layers']} of {found['layers']} layers" if found.get("sliding_layers") else ""
        rows.append(("window", f"{found['window']:,} tokens{some}"))
    if kv := found.get("kv_bytes_per_token"):
        rows.append(("KV per token", _bytes(kv)))
        beyond = found["kv_bytes_per_token_beyond_window"]
        if beyond != kv:
            rows.append(("  past a window", _bytes(beyond)))
    rows += _tokenizer(found["tokenizer"])
    rows += [("draft", _draft(d)) for d in found["drafts"]]
    return [f"{name:<16}{value}" for name, value in rows]


def _bytes(kv: Mapping[str, int]) -> str:
    return ", ".join(f"{size / 1024:,.1f} KiB in {name}" for name, size in kv.items())


def _tokenizer(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "error" in found:
        return [("tokenizer", found["error"])]
    padding = f" and {found['padding_rows']} rows of padding" if found["padding_rows"] else ""
    begins = f", texts begin with {found['bos']}" if found["begins_with_bos"] else ""
    template = "a chat template" if found["chat_template"] else "no chat template"
    return [("tokenizer", f"{found['ids']:,} ids{padding}; ends with {found['eos']}{begins}; {template}")]


def _draft(found: Mapping[str, Any]) -> str:
    verdict = {True: "fits", False: "does not fit", None: "cannot be told yet"}[found["fits"]]
    size = f", {found['size_of_target']:.1%} of the target's size" if found["fits"] else ""
    return f"{found['draft']}: {verdict}{size}{': ' + found['why'] if found.get('why') else ''}"
