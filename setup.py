"""Builds the kernels (headstart/kernels/src) into headstart/kernels/_kernels*.so. What else there is to know stands in pyproject.toml.

Without a compiler, or on another processor, the installation goes on without them, and everything runs on torch. An instruction set that
the compiler does not know is left out.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FLAGS = ["-O2", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-w"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
AMX = [*AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-bf16"]
INSTRUCTION_SETS = {
    "avx2": [*AVX2, "-DLANES=8"],
    "avx512": [*AVX512, "-DLANES=16"],
    "amx": [*AMX, "-DLANES=16", "-DAMX"],
}


class BuildKernels(build_ext):
    """A plain library that ctypes loads; kernels.cpp is compiled once per instruction set."""

    def build_extension(self, ext: Extension) -> None:
        with ThreadPoolExecutor() as pool:
            common = pool.submit(self.compile, ["team", "library", "processor"], "common", [])
            sets = {
                name: pool.submit(self.compile, ["kernels"], name, [*flags, f"-DKERNELS=kernels_{name}"])
                for name, flags in INSTRUCTION_SETS.items()
            }
        objects = common.result() + sets.pop("avx2").result()
        for name, compiled in sets.items():
            try:
                objects += compiled.result()
            except CompileError:
                self.warn(f"this compiler does not know {name}: the kernels are built without it")
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), libraries=["pthread"], target_lang="c++")

    def compile(self, names: list[str], folder: str, flags: list[str]) -> list[str]:
        files = [f"headstart/kernels/src/{name}.cpp" for name in names]
        return self.compiler.compile(files, str(Path(self.build_temp) / folder), extra_preargs=[*FLAGS, *flags])


sources = sorted(str(p) for p in Path("headstart/kernels/src").glob("*.cpp"))
headers = sorted(str(p) for p in Path("headstart/kernels/src").glob("*.hpp"))
setup(
    ext_modules=[Extension("headstart.kernels._kernels", sources, depends=headers, language="c++", optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
