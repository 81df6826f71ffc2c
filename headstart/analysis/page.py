"""analysis.html: the report as a page, with a text in which the colour of each token says how its draft fared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.analysis.charts import charts
from headstart.analysis.sheets import WHY_NOT_KL, headline, sheets
from headstart.forms.page import render

_TEMPLATE = Path(__file__).with_name("page.html")
_STEPS = 5


def page(found: Mapping[str, Any]) -> str:
    """The document as HTML."""
    return render(
        _TEMPLATE,
        charts(found),
        found=found,
        lines=headline(found),
        sheets=sheets(found),
        why=WHY_NOT_KL,
        samples=[_sample(s, found["ranking"]) for s in found["samples"]],
    )


def _sample(sample: Mapping[str, Any], order: list[str]) -> dict[str, Any]:
    """The text once for each drafter, best first: (token, class of its colour, what hovering shows)."""
    texts = []
    for name in order:
        marked = [
            (token, _class(alpha), f"alpha {alpha:.2f}, entropy {entropy:.2f}" if alpha is not None else f"no draft, entropy {entropy:.2f}")
            for token, alpha, entropy in zip(sample["tokens"], sample["alpha"][name], sample["entropy"], strict=True)
        ]
        texts.append((name, marked))
    return {**sample, "texts": texts}


def _class(alpha: float | None) -> str:
    return "none" if alpha is None else f"a{min(int(alpha * _STEPS), _STEPS - 1)}"
