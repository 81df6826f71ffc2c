"""Drafters: one file per method, the file name is the method name; and the drafters of others."""

from __future__ import annotations

from importlib import import_module

from headstart.core.errors import ModelError, first_line
from headstart.core.methods import METHODS
from headstart.core.plugins import foreign_method
from headstart.core.speculation import SpeculativeConfig
from headstart.draft.base import DraftContext, Drafter


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """The drafter of `spec.method`. Raises ModelError when its parts cannot be used with this target."""
    own = spec.method in METHODS
    drafter: Drafter = import_module(f"headstart.draft.{spec.method}").build(spec, context) if own else _build_foreign(spec, context)
    drafter.name = str(spec.method)
    return drafter


def _build_foreign(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    """A drafter of others: whatever its name points to, called with `spec` and `context`."""
    entry = foreign_method(spec.method)
    if entry is None:
        raise ModelError(f"method={spec.method!r} is registered no longer: install the package it came with")
    try:
        drafter = entry.load()(spec, context)
    except ModuleNotFoundError as e:
        raise ModelError(f"drafter {spec.method!r}: {e}: install its package, or put its folder on PYTHONPATH") from None
    except Exception as e:
        raise ModelError(f"drafter {spec.method!r} cannot be made ({type(e).__name__}: {first_line(e)}): see docs/drafters.md") from e
    if not isinstance(drafter, Drafter):
        raise ModelError(f"drafter {spec.method!r} gave a {type(drafter).__name__}: it must be a headstart.Drafter, see docs/drafters.md")
    return drafter
