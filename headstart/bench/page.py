"""bench.html: the report as one file that opens offline, without script and without asking for anything outside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from headstart.bench.charts import charts
from headstart.bench.sheets import drafting, gain, headline, setting, sheets
from headstart.bench.svg import svg

_TEMPLATE = Path(__file__).with_name("page.html")


def page(found: Mapping[str, Any]) -> str:
    """The document of `summary` as HTML. Text from models and files is escaped."""
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    tiles = [(gain(r["overall"]["speedup"]), r["arm"], setting(r)) for r in drafting(found["results"])]
    return template.render(
        found=found,
        lines=headline(found),
        tiles=tiles,
        charts=[(c, Markup(svg(c))) for c in charts(found)],
        parts=sheets(found),
        setting=setting,
    )
