"""Where headstart keeps what can be fetched or measured again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$HEADSTART_CACHE, else $XDG_CACHE_HOME/headstart, else ~/.cache/headstart. It need not exist."""
    own = os.environ.get("HEADSTART_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headstart"
