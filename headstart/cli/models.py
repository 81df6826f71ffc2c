"""`headstart models`: which families run, and how."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Annotated

from typer import Option


def models(*, as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False) -> None:
    """List model families: those of our own decoder, those that run on transformers' code, and those that do not run, with the reason."""
    from headstart.runtime.catalog import NATIVE, THROUGH, catalog

    entries = catalog()
    if as_json:
        print(json.dumps([e._asdict() for e in entries]))
        return
    native = [e.model_type + (f" (GGUF: {e.gguf})" if e.gguf else "") for e in entries if e.runs == NATIVE]
    through = [e.model_type for e in entries if e.runs == THROUGH]
    refused = defaultdict(list)
    for e in entries:
        if e.reason:
            refused[e.reason].append(e.model_type)
    _group("On headstart's own decoder", native)
    _group("On transformers' code, over headstart's paged KV (tried out at load)", through)
    for reason, names in refused.items():
        _group(f"Not: {reason}", names)


def _group(title: str, names: list[str]) -> None:
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    print(f"{title}: {len(names)}")
    print(
        textwrap.fill(", ".join(names), width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    )
