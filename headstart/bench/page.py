"""bench.html: the report as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.bench.charts import charts
from headstart.bench.sheets import drafting, headline, setting, sheets
from headstart.forms.page import render
from headstart.forms.sheet import gain

_TEMPLATE = Path(__file__).with_name("page.html")


def page(found: Mapping[str, Any]) -> str:
    """The document of `summary` as HTML."""
    tiles = [(gain(r["overall"]["speedup"]), r["arm"], setting(r)) for r in drafting(found["results"])]
    return render(_TEMPLATE, charts(found), found=found, lines=headline(found), tiles=tiles, parts=sheets(found), setting=setting)
