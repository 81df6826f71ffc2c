"""A corpus of token ids on disk, found by any substring: suffix arrays, read through memory maps.

A folder holds `index.json`, which is written last and replaced as a whole, and for each segment its tokens (`.ids`) and the
order of its suffixes (`.order`, int32). Ids are stored big-endian, so that comparing bytes compares tokens. Opening and looking
up need the standard library only. Knows nothing of text (see corpus_build.py for making one).
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from headstart.core.errors import ModelError

VERSION = 1
FORMAT = "headstart corpus index"


@dataclass
class Segment:
    """Tokens that were indexed together, the separators after documents included."""

    name: str
    tokens: int
    documents: int


@dataclass
class Manifest:
    """What `index.json` says. `width` is bytes per id; the id of all ones ends a document."""

    tokenizer: str  # what the ids belong to: where it was loaded from
    fingerprint: str  # and a hash of its vocabulary
    vocab: int
    width: int
    segments: list[Segment] = field(default_factory=list)
    version: int = VERSION
    format: str = FORMAT

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.segments)

    @property
    def documents(self) -> int:
        return sum(s.documents for s in self.segments)

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def read_manifest(folder: Path) -> Manifest:
    """Read and check `index.json` and the sizes of the files it names. Raises ModelError."""
    path = folder / "index.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        why = "its build was interrupted, or it is something else" if folder.is_dir() else "there is no such folder"
        raise ModelError(f"{folder} is not a corpus index ({why}): make one with headstart index build") from None
    except (OSError, ValueError) as e:
        raise ModelError(f"{path} cannot be read ({e}): build the index again") from None
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise ModelError(f"{path} is not of a corpus index: make one with headstart index build")
    if given.get("version") != VERSION:
        raise ModelError(f"{folder} has index version {given.get('version')!r}, this program reads {VERSION}: build the index again")
    try:
        manifest = Manifest(**{**given, "segments": [Segment(**s) for s in given["segments"]]})
        expected = {f"{s.name}{end}": s.tokens * w for s in manifest.segments for end, w in ((".ids", manifest.width), (".order", 4))}
    except (TypeError, KeyError) as e:
        raise ModelError(f"{path} is damaged ({e}): build the index again") from None
    for name, size in expected.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if found != size:
            raise ModelError(f"{folder / name} has {found} bytes and should have {size}: it is damaged, build the index again")
    return manifest


class Match(NamedTuple):
    """Where a context was found: `length` tokens of its end, at the suffixes `low` to `high` - 1 of a segment's order."""

    length: int
    segment: int
    low: int
    high: int


class Corpus:
    """An open index. Invariant: its files are read only; what is added to the folder later is not seen."""

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        self.width = self.manifest.width
        self.end = b"\xff" * self.width
        self._parts = [self._open(folder, s) for s in self.manifest.segments]

    @staticmethod
    def _open(folder: Path, segment: Segment) -> tuple[mmap.mmap, memoryview]:
        maps = []
        for end in (".ids", ".order"):
            try:
                with (folder / (segment.name + end)).open("rb") as f:
                    maps.append(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError) as e:
                raise ModelError(f"{folder / segment.name}{end} cannot be read ({e}): build the index again") from None
        return maps[0], memoryview(maps[1]).cast("i")

    def find(self, context: Sequence[int], longest: int) -> Match | None:
        """The longest end of `context`, at most `longest` tokens, that occurs; in the latest segment if in several.

        Bisects over the length, since where an end occurs every shorter one does, and for each length over the order.
        """
        tail = self._pack(context[-longest:])
        best: Match | None = None
        for i in range(len(self._parts) - 1, -1, -1):
            low, high = best.length if best else 0, len(tail) // self.width
            while low < high:
                length = (low + high + 1) // 2
                if self._occurs(i, tail[-length * self.width :]):
                    low = length
                else:
                    high = length - 1
            if low > (best.length if best else 0):
                pattern = tail[-low * self.width :]
                first = self._bisect(i, pattern, 0, self.manifest.segments[i].tokens)
                best = Match(low, i, first, self._bisect(i, pattern, first, self.manifest.segments[i].tokens, after=True))
        return best

    def draft(self, match: Match, limit: int, least: float = 0.0) -> list[int]:
        """Up to `limit` tokens that follow a match, at each step the one after the median of the suffixes that are left.

        That is the most frequent one wherever it has more than half of them. Ends at the end of a document, or where what
        follows was seen in less than a share `least` of the places of the match.
        """
        ids, order = self._parts[match.segment]
        w, low, high = self.width, match.low, match.high
        out: list[int] = []
        offset = order[low] * w
        pattern = ids[offset : offset + match.length * w]
        while len(out) < limit:
            at = (order[(low + high) // 2]) * w + len(pattern)
            token = ids[at : at + w]
            if len(token) < w or token == self.end:
                break
            pattern += token
            if high - low > 1:
                low = self._bisect(match.segment, pattern, low, high)
                high = self._bisect(match.segment, pattern, low, high, after=True)
                if (high - low) < least * (match.high - match.low):
                    break
            out.append(int.from_bytes(token, "big"))
        return out

    def _pack(self, tokens: Sequence[int]) -> bytes:
        return b"".join(t.to_bytes(self.width, "big") for t in tokens)

    def _occurs(self, part: int, pattern: bytes) -> bool:
        ids, order = self._parts[part]
        at = self._bisect(part, pattern, 0, len(order))
        return at < len(order) and ids[order[at] * self.width : order[at] * self.width + len(pattern)] == pattern

    def _bisect(self, part: int, pattern: bytes, low: int, high: int, *, after: bool = False) -> int:
        """The first suffix in order[low:high] that does not come before `pattern`; or that comes after all that begin with it."""
        ids, order = self._parts[part]
        w, n = self.width, len(pattern)
        while low < high:
            middle = (low + high) // 2
            at = order[middle] * w
            head = ids[at : at + n]
            if head < pattern or (after and head == pattern):
                low = middle + 1
            else:
                high = middle
        return low
