"""Drafters: one file per method, the file name is the method name."""

from __future__ import annotations

from importlib import import_module

from headstart.core.config import SpeculativeConfig
from headstart.draft.base import DraftContext, Drafter


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """The drafter of `spec.method`. Raises ModelError when its parts cannot be used with this target."""
    return import_module(f"headstart.draft.{spec.method}").build(spec, context)
