"""Somebody who interrupts a command, at a known moment."""

from __future__ import annotations


class SoonAsked:
    """Ctrl-C after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __enter__(self) -> SoonAsked:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def asked(self) -> bool:
        self.left -= 1
        return self.left < 0
