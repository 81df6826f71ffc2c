"""The paths avx512 and amx on a processor that has only AVX2: the same sources, with the instructions it lacks written out
(emulation/immintrin.h). For tests only: it is slow, and no user can choose it."""

from __future__ import annotations

import fcntl
import functools
import runpy
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from headstart.kernels import library

ROOT = Path(__file__).parents[2]
SOURCES, EMULATION = ROOT / "headstart/kernels/src", Path(__file__).parent / "emulation"


def build(folder: Path):
    """(what chooses among emulated paths, what loads them), for headstart/kernels/library.py. Whoever comes second waits for the first."""
    with (folder / "emulated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "emulated.so"
        if not file.exists():
            _compile(folder, file)
    handle = library._open(file)
    return functools.cache(library._choose.__wrapped__), lambda: (handle, "")


def _compile(folder: Path, file: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler")
    with patch("setuptools.setup"):
        flags = [f for f in runpy.run_path(str(ROOT / "setup.py"))["FLAGS"] if f != "-O2"]
    flags += ["-O1", "-Wno-psabi", "-mavx2", "-mfma", "-mf16c", "-DLANES=16", f"-I{EMULATION}", f"-I{SOURCES}"]

    def compiled(source: Path, name: str, *more: str) -> str:
        subprocess.run([compiler, *flags, *more, "-c", source, "-o", folder / name], check=True)
        return str(folder / name)

    with ThreadPoolExecutor() as pool:
        parts = [pool.submit(compiled, SOURCES / "kernels.cpp", "avx512.o", "-DKERNELS=kernels_avx512")]
        parts += [pool.submit(compiled, SOURCES / "kernels.cpp", "amx.o", "-DKERNELS=kernels_amx", "-DAMX")]
        sources = (SOURCES / "team.cpp", SOURCES / "library.cpp", EMULATION / "processor.cpp")
        parts += [pool.submit(compiled, source, f"{source.stem}.o") for source in sources]
    subprocess.run([compiler, "-shared", *[p.result() for p in parts], "-lpthread", "-o", file.with_suffix(".new")], check=True)
    file.with_suffix(".new").rename(file)
