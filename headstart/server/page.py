"""The page at /: its markup, style and script made one file that asks for nothing else, and the policy under which it runs."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def page() -> tuple[str, str]:
    """The page, and a Content-Security-Policy: its own style and script run, nothing else does, and nothing is loaded from elsewhere."""
    markup, style, script = (Path(__file__).with_suffix(kind).read_text(encoding="utf-8") for kind in (".html", ".css", ".js"))
    whole = markup.replace('<link rel="stylesheet" href="page.css">', f"<style>{style}</style>")
    whole = whole.replace('<script src="page.js"></script>', f"<script>{script}</script>")
    return whole, (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
