"""Which architectures run, and how: on our own decoder, on transformers' code over our paged cache, or not at all.

Read off transformers' source files, so that none of its models need be imported; a load decides by trying.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headstart.models.gguf_config import ARCHITECTURES
from headstart.runtime.loader import FAMILIES

NATIVE, THROUGH, REFUSED = "native", "transformers", "refused"


class Entry(NamedTuple):
    model_type: str
    runs: str  # NATIVE, THROUGH or REFUSED
    gguf: str = ""  # the architecture's name in GGUF files, where those are read
    reason: str = ""  # of a refusal


def catalog() -> list[Entry]:
    """Every model_type with a causal language model in transformers."""
    import transformers
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    folder = Path(transformers.__file__).parent / "models"
    stored = {kind.model_type: name for name, kind in ARCHITECTURES.items()}
    native = [Entry(name, NATIVE, stored.get(name, "")) for name in FAMILIES]
    others = []
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if name not in FAMILIES:
            module = model_type_to_module_name(name)
            others.append(_entry(name, folder / module / f"modeling_{module}.py"))
    return native + sorted(others)


def _entry(name: str, source: Path) -> Entry:
    try:
        text = source.read_text(encoding="utf-8")
    except OSError:
        return Entry(name, REFUSED, reason="it has no model code in this transformers")
    if "_is_stateful = True" in text:
        return Entry(name, REFUSED, reason="it keeps a recurrent state, which cannot be taken back when drafts are rejected")
    if "ALL_ATTENTION_FUNCTIONS" not in text:
        return Entry(name, REFUSED, reason="its attention cannot be exchanged in transformers")
    return Entry(name, THROUGH)
