"""Make a corpus index, and add to one. Needs numpy, and pydivsufsort for the order of the suffixes.

Segments are written first and `index.json` is replaced last: whatever interrupts a build, the folder holds the index it held
before, or none. An addition is a segment of its own, merged with those before it that are not much larger, so that their number
stays logarithmic and each token is sorted anew a logarithmic number of times.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headstart.core.errors import ModelError
from headstart.lookup.corpus import Manifest, Segment, read_manifest

_MAX_BYTES = (1 << 31) - 1  # of the ids of a segment: offsets are int32


def id_width(vocab: int) -> int:
    """Bytes per id; the id of all ones is kept for the ends of documents."""
    return 2 if vocab < (1 << 16) else 3


def create(folder: Path, tokenizer: str, fingerprint: str, vocab: int, documents: Iterable[Sequence[int]]) -> Manifest:
    """Make an index of documents in a folder that is new, empty, or left by an interrupted build. Raises ModelError."""
    manifest = Manifest(tokenizer, fingerprint, vocab, id_width(vocab))
    if (folder / "index.json").exists():
        raise ModelError(f"{folder} is a corpus index already: add to it with headstart index add, or delete it first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ModelError(f"{folder} cannot be made ({e.strerror}): choose another --out") from None
    with _writing(folder):
        if any(p.suffix not in (".ids", ".order", ".part") for p in folder.iterdir()):
            raise ModelError(f"{folder} holds other files: choose a new folder for the index")
        return _append(folder, manifest, documents)


def extend(folder: Path, documents: Iterable[Sequence[int]]) -> Manifest:
    """Add documents to an index. Raises ModelError."""
    read_manifest(folder)  # nothing is locked that is no index
    with _writing(folder):
        return _append(folder, read_manifest(folder), documents)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Be the only one who writes into a folder; the system ends the lock with the process. Raises ModelError."""
    try:
        import fcntl
    except ImportError:  # Windows: whoever writes there must take care alone
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ModelError(f"{folder} is being written by another headstart index: try again when that has ended") from None
    try:
        yield
    finally:
        os.close(handle)


def _append(folder: Path, manifest: Manifest, documents: Iterable[Sequence[int]]) -> Manifest:
    end = b"\xff" * manifest.width
    parts = [_packed(ids, manifest) + end for ids in documents if ids]
    if not parts:
        raise ModelError("there is no text in these files: nothing was indexed")
    ids, count = b"".join(parts), len(parts)
    kept = list(manifest.segments)
    while kept and kept[-1].tokens * manifest.width <= 2 * len(ids):
        ids = (folder / f"{kept[-1].name}.ids").read_bytes() + ids
        count += kept.pop().documents
    if len(ids) > _MAX_BYTES:
        raise ModelError(f"{len(ids) // manifest.width} tokens are too many for one build, {_MAX_BYTES // manifest.width} fit: split it up")
    segment = Segment(secrets.token_hex(8), len(ids) // manifest.width, count)
    try:
        _write(folder / f"{segment.name}.ids", ids)
        _write(folder / f"{segment.name}.order", _order(ids, manifest.width).tobytes())
        made = Manifest(manifest.tokenizer, manifest.fingerprint, manifest.vocab, manifest.width, [*kept, segment])
        _write(folder / "index.json.part", made.as_json().encode())
        os.replace(folder / "index.json.part", folder / "index.json")
    except OSError as e:
        raise ModelError(f"the index cannot be written to {folder} ({e.strerror or e})") from None
    finally:
        _sweep(folder)
    return made


def _packed(ids: Sequence[int], manifest: Manifest) -> bytes:
    array = np.asarray(ids, dtype=np.int64)
    if array.min() < 0 or array.max() >= manifest.vocab:
        raise ModelError(f"token id {array.max()} is not one of the {manifest.vocab} of the index's tokenizer")
    return array.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - manifest.width :].tobytes()


def _order(ids: bytes, width: int) -> np.ndarray:
    """The suffixes of the tokens in lexicographic order: those of the bytes, of which the ones that begin a token are kept."""
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        raise ModelError("making an index needs pydivsufsort: pip install 'headstart[corpus]'") from None
    order = divsufsort(np.frombuffer(bytearray(ids), dtype=np.uint8))  # a copy: it takes no read-only memory
    return (order[order % width == 0] // width).astype("<i4")


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _sweep(folder: Path) -> None:
    """Delete segments that `index.json` does not name: those of an interrupted build, and those merged into a later one."""
    try:
        named = {s.name for s in read_manifest(folder).segments}
    except ModelError:
        named = set()
    for path in folder.iterdir():
        if path.suffix == ".part" or (path.suffix in (".ids", ".order") and path.stem not in named):
            path.unlink(missing_ok=True)
