"""A pytest plugin (`-p tests.no_torch`): importing torch, numpy and the other heavy libraries fails, as if not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

BLOCKED = ("torch", "numpy", "scipy", "transformers", "tokenizers", "safetensors", "gguf", "rich", "typer", "prompt_toolkit")


class _Blocker:
    """A finder that knows no module, and says so for the blocked ones."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by tests.no_torch)", name=name)
        return None


already = sorted(set(BLOCKED) & sys.modules.keys())
if already:
    raise RuntimeError(f"tests.no_torch came too late: {', '.join(already)} already imported")
sys.meta_path.insert(0, _Blocker())  # type: ignore[arg-type]
