"""Builds the kernels (headstart/kernels/src) into headstart/kernels/_kernels*.so. What else there is to know stands in pyproject.toml.

Without a compiler, or on another processor, the installation goes on without them, and everything runs on torch.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-O2", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-w"]
INSTRUCTION_SETS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}


class BuildKernels(build_ext):
    """A plain library that ctypes loads; kernels.cpp is compiled once per instruction set."""

    def build_extension(self, ext: Extension) -> None:
        folder, build = Path("headstart/kernels/src"), Path(self.build_temp)
        objects = self.compiler.compile([str(folder / f"{name}.cpp") for name in ("team", "library")], str(build), extra_preargs=FLAGS)
        for name, flags in INSTRUCTION_SETS.items():
            own = [*FLAGS, *flags, f"-DKERNELS=kernels_{name}"]
            objects += self.compiler.compile([str(folder / "kernels.cpp")], str(build / name), extra_preargs=own)
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), libraries=["pthread"], target_lang="c++")


sources = sorted(str(p) for p in Path("headstart/kernels/src").glob("*.cpp"))
headers = sorted(str(p) for p in Path("headstart/kernels/src").glob("*.hpp"))
setup(
    ext_modules=[Extension("headstart.kernels._kernels", sources, depends=headers, language="c++", optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
