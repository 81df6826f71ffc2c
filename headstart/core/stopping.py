"""Where generation ends: token by token, so that the end falls at the same place with and without drafts.

A step may deliver several tokens; each goes through `stop_at` in order and the first hit ends the sequence, whatever
stands behind it. EOS and stop ids come before the length cap: a stop id at the last allowed position is a stop.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from headstart.core.types import Sequence


def stop_at(seq: Sequence) -> tuple[str, int | str | None] | None:
    """(finish_reason, stop_reason) if the last committed token ends the sequence by its id or by length, else None.

    Like vLLM: stop_reason is None for EOS and for length, the id for one of `stop_token_ids`.
    """
    token, params = seq.tokens[-1], seq.params
    if not params.ignore_eos and token in seq.eos_ids:
        return "stop", None
    if token in (params.stop_token_ids or ()):
        return "stop", token
    return ("length", None) if seq.remaining <= 0 else None


def find_stop(text: str, new: int, stops: Seq[str]) -> tuple[int, str] | None:
    """The earliest stop string that ends within the last `new` characters of `text`: (where it starts, which).

    Of two that start at the same place the longer-listed order decides: the first in `stops`.
    """
    best: tuple[int, str] | None = None
    for s in stops:
        at = text.find(s, max(0, len(text) - new - len(s) + 1))
        if at >= 0 and (best is None or at < best[0]):
            best = (at, s)
    return best


def held_back(text: str, stops: Seq[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string and must not be shown yet."""
    longest = 0
    for s in stops:
        for n in range(min(len(s) - 1, len(text)), longest, -1):
            if text.endswith(s[:n]):
                longest = n
                break
    return longest
