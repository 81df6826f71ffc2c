"""A report as one HTML file that opens offline, without script and without asking for anything outside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from headstart.forms.chart import Chart
from headstart.forms.svg import svg


def render(template: Path, charts: Sequence[Chart], **values: Any) -> str:
    """A template that extends base.html, filled; `charts` in it are (Chart, its drawing). Text from models and files is escaped."""
    folders = FileSystemLoader([template.parent, Path(__file__).parent])
    environment = Environment(loader=folders, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template.name).render(charts=[(c, Markup(svg(c))) for c in charts], **values)
