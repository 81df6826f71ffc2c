"""A real server on a port of its own, in a thread of this process: uvicorn, the engine thread and a tiny Llama in fp64."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny import edit_json, tokenizer, vocabulary, write_llama

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from headstart.api import LLM
from headstart.server.run import Server, listen
from headstart.server.service import Service
from headstart.server.settings import Settings

# Knows tools, calls of the past and an option of its own, as the templates of current models do.
TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t.function | tojson }}{% endfor %}</tools>\n{% endif %}"
    "{% if shout is defined %}{{ shout }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.items() | list }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = len(vocabulary()[0])
PROMPT = "the cat sat on the mat the cat sat on the mat the cat sat"
NAME = "tiny"


def write_model(folder: Path, template: str = TEMPLATE, max_len: int = 2048, **options: Any) -> Path:
    """A checkpoint as a user would have it; its end-of-text token is <|im_end|>."""
    write_llama(folder, vocab=WORDS, max_len=max_len, eos=2, **{"scale": 0.3, "seed": 3, **options})
    made = tokenizer()
    made.chat_template = template
    made.save_pretrained(folder)
    if (folder / "generation_config.json").exists():
        edit_json(folder / "generation_config.json", eos_token_id=2)
    return folder


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served"))


def load(path: Path, **options: Any) -> LLM:
    """The model with lookup drafts, whatever else is asked."""
    given: dict[str, Any] = {"dtype": "float64", "seed": 0, "kv_cache_memory": "8MiB", "max_num_seqs": 8, "block_size": 4, **options}
    spec = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1, "adaptive": False}
    given.setdefault("speculative_config", spec)
    return LLM(str(path), **given)


class Running:
    """A server that runs until `close`; `client` speaks to it."""

    def __init__(self, make: Callable[[], LLM], **options: Any) -> None:
        settings = replace(Settings(host="127.0.0.1", port=0, served_name=NAME), **options)
        self.sock = listen(settings)
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.service = Service(settings)
        self.server = Server(self.service, make, lambda url: None)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.sock]))

    def wait(self) -> Running:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.server.failure is None:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/health").status_code == 200:
                    return self
            time.sleep(0.02)
        raise self.server.failure or TimeoutError("the server did not get ready")

    @property
    def engine(self) -> Any:
        return self.service.loop.engine

    def idle(self) -> None:
        """Wait until nothing runs, then check that nothing leaked."""
        end = time.monotonic() + 60
        while self.service.loop.held and time.monotonic() < end:  # first: what is still on its way to the engine
            time.sleep(0.01)
        assert self.service.loop.held == 0 and self.service.loop.wait_idle(20), "requests are left"
        self.engine.pool.check([])
        assert not self.engine.requests and not self.engine.owner

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(20)
        self.sock.close()
        assert not self.thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def server(model_path: Path) -> Iterator[Running]:
    """The server that most tests share. They leave nothing behind in it."""
    running = Running(lambda: load(model_path)).wait()
    yield running
    running.close()


@pytest.fixture
def launch(model_path: Path) -> Iterator[Callable[..., Running]]:
    """Start servers of one's own: engine options in `engine`, settings as keywords."""
    started: list[Running] = []

    def start(engine: dict[str, Any] | None = None, path: Path | None = None, wait: bool = True, **settings: Any) -> Running:
        running = Running(lambda: load(path or model_path, **(engine or {})), **settings)
        started.append(running)
        return running.wait() if wait else running

    yield start
    for running in started:
        running.close()


def chat(server: Running, content: str = PROMPT, **fields: Any) -> httpx.Response:
    """One chat request without a stream."""
    body = {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 24, "temperature": 0, **fields}
    return server.client.post("/v1/chat/completions", json=body)


def complete(server: Running, prompt: Any = PROMPT, **fields: Any) -> httpx.Response:
    """One completion request without a stream."""
    return server.client.post("/v1/completions", json={"model": NAME, "prompt": prompt, "max_tokens": 24, "temperature": 0, **fields})
