"""`headstart index`: make a corpus of the user's own texts for `--draft corpus:INDEX`, add to one, say what is in one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from headstart.cli.prompts import json_lines, read_text
from headstart.cli.show import note
from headstart.core.errors import ConfigError, ModelError, nearest

if TYPE_CHECKING:
    from headstart.lookup.corpus import Manifest

_ACTIONS = ("build", "add", "info")
_PIECE = 1 << 20  # characters tokenized at once


def index(
    action: Annotated[str, Argument(help="build, add or info.", metavar="ACTION")],
    files: Annotated[list[str] | None, Argument(help='Texts: a file is one document, .jsonl one per line (text or {"text": …}).')] = None,
    *,
    out: Annotated[str | None, Option("--out", "-o", help="Folder of the index.", metavar="INDEX")] = None,
    tokenizer: Annotated[
        str | None,
        Option("--tokenizer", "-m", help="build: the target, or what has its tokenizer: directory, GGUF file or hub id.", metavar="M"),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a corpus of texts to draft from (build, add), or look at one (info).

    headstart index build --tokenizer M --out INDEX FILES

    headstart index add --out INDEX FILES

    headstart index info INDEX
    """
    given = files or []
    if action not in _ACTIONS:
        raise ConfigError(f"headstart index has no action {action!r}: {nearest(action, _ACTIONS)}")
    if action == "info":
        _info(given, out, tokenizer, as_json)
        return
    if out is None:
        raise ConfigError(f"headstart index {action} needs --out INDEX, the folder of the index")
    if not given:
        raise ConfigError(f"headstart index {action} needs files: headstart index {action} --out {out} FILES")
    start = time.perf_counter()
    manifest = _build(Path(out), tokenizer, given) if action == "build" else _add(Path(out), tokenizer, given)
    if as_json:
        print(json.dumps(_facts(out, manifest)))
    else:
        note(f"{out}: {manifest.tokens:,} tokens in {manifest.documents:,} documents, {time.perf_counter() - start:.1f} s")


def _build(folder: Path, source: str | None, files: Sequence[str]) -> Manifest:
    from headstart.lookup.corpus_build import create
    from headstart.runtime.tokenizer import fingerprint, open_tokenizer

    if source is None:
        raise ConfigError("headstart index build needs --tokenizer M: the target, or what has its tokenizer")
    tokenizer = open_tokenizer(source)
    vocab = max(tokenizer.get_vocab().values()) + 1
    return create(folder, source, fingerprint(tokenizer), vocab, _documents(tokenizer, files))


def _add(folder: Path, source: str | None, files: Sequence[str]) -> Manifest:
    from headstart.lookup.corpus import read_manifest
    from headstart.lookup.corpus_build import extend
    from headstart.runtime.tokenizer import fingerprint, open_tokenizer

    manifest = read_manifest(folder)
    try:
        tokenizer = open_tokenizer(source or manifest.tokenizer)
    except ModelError as e:
        raise ModelError(f"{e}" if source else f"the tokenizer of {folder} is gone ({e}): give --tokenizer M") from None
    if fingerprint(tokenizer) != manifest.fingerprint:
        raise ModelError(f"{source or manifest.tokenizer} is another tokenizer than {folder} was made with: make an index of its own")
    return extend(folder, _documents(tokenizer, files))


def _info(files: Sequence[str], out: str | None, tokenizer: str | None, as_json: bool) -> None:
    from headstart.lookup.corpus import Corpus

    paths = [*files, *([out] if out else [])]
    if len(paths) != 1 or tokenizer:
        raise ConfigError("headstart index info takes one index and nothing else: headstart index info INDEX")
    facts = _facts(paths[0], Corpus(Path(paths[0])).manifest)
    print(json.dumps(facts) if as_json else "\n".join(f"{name:<12}{value}" for name, value in facts.items()))


def _facts(path: str, manifest: Manifest) -> dict[str, Any]:
    size = sum(p.stat().st_size for p in Path(path).iterdir())
    return {
        "index": path,
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "segments": len(manifest.segments),
        "bytes": size,
        "tokenizer": manifest.tokenizer,
        "fingerprint": manifest.fingerprint,
    }


def _documents(tokenizer: Any, files: Sequence[str]) -> Iterator[list[int]]:
    """The ids of each document. Files without text give none, which is said."""
    for name in files:
        texts = [t for t in _texts(name) if t.strip()]
        if not texts:
            note(f"{name} holds no text: left out")
        for text in texts:
            ids: list[int] = []
            for piece in _pieces(text):
                ids += tokenizer(piece, add_special_tokens=False).input_ids
            yield ids


def _texts(name: str) -> Iterator[str]:
    text = read_text("index", name)
    if name.endswith(".jsonl"):
        yield from json_lines(name, text, "text")
    else:
        yield text


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces that end at line ends, so that tokenizing it takes bounded memory."""
    start = 0
    while start < len(text):
        end = start + _PIECE
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end
