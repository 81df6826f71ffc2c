"""From the ids of one tokenizer to those of another: which mean the same, and how a text of the one is spelled by the other.

Ids are compared by the bytes they stand for, so that byte-level pieces ("Ġthe") and those of SentencePiece ("▁the") can be equal.
Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headstart.runtime.tokenizer import continuation

# Everyday text, code and figures: how much of it both vocabularies share says how a draft will fare.
_SAMPLE = """The committee met on Tuesday to discuss the results of last year's survey, which had been published in 2023.
In general, people who live near the river said that they would rather walk than drive; however, about 35% were not sure.
def total(items: list[int]) -> int:
    return sum(x for x in items if x > 0)  # negative values are ignored
Ein kurzer Satz auf Deutsch, une phrase en français, y una en español. {"name": "Ada", "age": 36, "tags": ["math", "code"]}
"""


def _byte_of_letter() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable bytes stand for themselves, the others for 256, 257, ..."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out = {chr(b): b for b in plain}
    out |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)}
    return out


def piece_bytes(tokenizer: Any) -> dict[int, bytes]:
    """The bytes of every id that stands for text; special ones are left out."""
    special = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = backend is not None and "ByteLevel" in json.dumps(json.loads(backend.to_str()).get("decoder"))
    letters = _byte_of_letter() if byte_level else {}
    out: dict[int, bytes] = {}
    for piece, ident in tokenizer.get_vocab().items():
        if ident in special:
            continue
        if byte_level and all(c in letters for c in piece):
            out[ident] = bytes(letters[c] for c in piece)
        elif len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            out[ident] = bytes([int(piece[3:5], 16)])
        else:
            out[ident] = piece.replace("▁", " ").encode()
    return out


class Translation:
    """Invariant: `same` pairs ids of equal bytes, each of either side at most once, and the two that end a text."""

    def __init__(self, target: Any, draft: Any, target_ids: int, draft_ids: int) -> None:
        """The first `target_ids` and `draft_ids` ids of each have a meaning to their models."""
        self.target, self.draft = target, draft
        self.ours = {i: b for i, b in piece_bytes(target).items() if i < target_ids}
        self.theirs = {i: b for i, b in piece_bytes(draft).items() if i < draft_ids}
        self.by_bytes: dict[bytes, int] = {}
        for i, b in sorted(self.theirs.items()):
            self.by_bytes.setdefault(b, i)
        self.same: dict[int, int] = {}
        taken: set[int] = set()
        for i, b in sorted(self.ours.items()):
            other = self.by_bytes.get(b)
            if other is not None and other not in taken:
                self.same[i] = other
                taken.add(other)
        ends = target.eos_token_id, draft.eos_token_id
        if None not in ends and ends[0] < target_ids and ends[1] < draft_ids and ends[1] not in taken:
            self.same[ends[0]] = ends[1]
        self._spelled: dict[int, list[int]] = {}

    def shared(self) -> float:
        """The share of the tokens of everyday text, as the target writes it, that the draft has too."""
        ids = self.target(_SAMPLE, add_special_tokens=False).input_ids
        return sum(i in self.same for i in ids) / max(len(ids), 1)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """A prompt as the draft's tokenizer would write it: text anew, special tokens one by one."""
        out = self.draft("").input_ids[:1]  # what begins a text, for those that begin it by something
        run: list[int] = []
        for i in [*ids, None]:
            if i in self.ours:
                run.append(i)  # type: ignore[arg-type]
                continue
            if run:
                out += continuation(self.draft, b"".join(self.ours[j] for j in run).decode(errors="replace"))
            run = []
            if i is not None:
                out += self.spelled(i)
        return out

    def spelled(self, ident: int) -> list[int]:
        """One target token in ids of the draft."""
        if ident in self.same:
            return [self.same[ident]]
        if ident not in self._spelled:
            self._spelled[ident] = self._spell(ident)
        return self._spelled[ident]

    def _spell(self, ident: int) -> list[int]:
        data = self.ours.get(ident)
        if data is None:  # a special token that the draft does not have
            return []
        try:
            return continuation(self.draft, data.decode())
        except UnicodeDecodeError:  # part of a character
            return [self.by_bytes[bytes([b])] for b in data if bytes([b]) in self.by_bytes]

    def said(self, text: Sequence[int], drafts: Sequence[int], look_behind: int) -> list[int]:
        """What the draft's tokens `drafts` after the target's `text` are in target tokens; their boundary may have merged."""
        data = b""
        for i in drafts:
            if i not in self.theirs:  # a special token: the end, or nothing that can be said in text
                break
            data += self.theirs[i]
        new = data.decode(errors="ignore")
        if not new:
            return []
        tail: list[int] = []
        for i in reversed(text[-look_behind:]):
            if i not in self.ours:
                break
            tail.insert(0, i)
        try:
            before = b"".join(self.ours[i] for i in tail).decode()
        except UnicodeDecodeError:  # begins or ends within a character
            return continuation(self.target, new)
        both = continuation(self.target, before + new)
        return both[len(tail) :] if both[: len(tail)] == tail else continuation(self.target, new)
