"""Engines behind `LLM`: the native one in this process, or vLLM in a process of its own. One protocol for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headstart.core.config import EngineConfig
from headstart.core.outputs import RequestOutput
from headstart.core.params import SamplingParams


class Running(Protocol):
    """A request on its way."""

    id: str

    @property
    def finished(self) -> bool: ...

    def output(self) -> RequestOutput:
        """The request as the user sees it now."""


class Backend(Protocol):
    """What `LLM` needs of an engine. `drafts`: the most drafts of a step, 0 when nothing drafts."""

    tokenizer: Any
    drafts: int

    @property
    def requests(self) -> Mapping[str, Running]:
        """Those that have not ended, by id."""

    def add(self, request_id: str, prompt: str | None, ids: list[int], params: SamplingParams) -> Running:
        """Queue a request. Raises ConfigError when it cannot be served as it is."""

    def step(self) -> list[Any]:
        """Go on until there is something new; the requests that got tokens or ended. Raises EngineError when the engine has gone."""

    def abort(self, request_id: str) -> Any:
        """End a request now; unknown ids are ignored."""

    def close(self) -> None:
        """End what runs and give everything back."""


def open_backend(config: EngineConfig, notes: list[str]) -> Backend:
    """The engine that a configuration asks for, loaded. Start-up lines are appended to `notes`.

    Raises ConfigError, ModelError, EngineError.
    """
    if config.backend == "vllm":
        from headstart.backends.vllm.engine import start

        return start(config, notes)
    from headstart.engine.build import build_engine

    return build_engine(config, notes)
