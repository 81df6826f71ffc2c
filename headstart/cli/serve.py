"""`headstart serve`: the OpenAI-compatible server. What it does is in headstart/server; here are its options and its banner."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from headstart.backends.commands import Door
from headstart.cli.options import ModelOptions, SpeculationOptions
from headstart.cli.show import note, unsaid
from headstart.core.errors import ConfigError

if TYPE_CHECKING:
    from headstart.api import LLM
    from headstart.server.settings import Settings


def serve(
    model_name: Annotated[str | None, Argument(help="Target model, as with --model.", metavar="MODEL")] = None,
    *,
    model: ModelOptions,
    speculation: SpeculationOptions,
    host: Annotated[str, Option("--host", help="Address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Option("--port", help="Port to listen on; 0 takes a free one.", metavar="N")] = 8000,
    served_model_name: Annotated[str | None, Option("--served-model-name", help="Name in the API. Default: the model's own.")] = None,
    api_key: Annotated[list[str] | None, Option("--api-key", help="Key that clients must send. Repeat it. Also HEADSTART_API_KEY.")] = None,
    api_key_file: Annotated[str | None, Option("--api-key-file", help="File with one key a line.", metavar="FILE")] = None,
    open_metrics: Annotated[bool, Option("--open-metrics", help="Serve /metrics without a key.")] = False,
    allowed_host: Annotated[list[str] | None, Option("--allowed-host", help="Host header to answer to. Repeat it.", metavar="HOST")] = None,
    allowed_origin: Annotated[list[str] | None, Option("--allowed-origin", help="Origin that browsers may call from (CORS).")] = None,
    max_queue: Annotated[int, Option("--max-queue", help="Sequences that may wait; one more gets 429.", metavar="N")] = 256,
    max_n: Annotated[int, Option("--max-n", help="Most completions per prompt.", metavar="N")] = 16,
    max_body: Annotated[str, Option("--max-body", help="Largest request body.", metavar="SIZE")] = "8MiB",
    request_timeout: Annotated[float, Option("--request-timeout", help="Seconds a request may take; 0 for no limit.", metavar="S")] = 600.0,
    drain_timeout: Annotated[float, Option("--drain-timeout", help="Seconds running requests get after SIGTERM.", metavar="S")] = 60.0,
    chat_template: Annotated[str | None, Option("--chat-template", help="File with a chat template (jinja).", metavar="FILE")] = None,
    metrics_prefix: Annotated[str, Option("--metrics-prefix", help="Prefix of metric names; vllm: suits its dashboards.")] = "headstart:",
    request_metrics: Annotated[
        str, Option("--per-request-spec-decode-metrics", help="none, summary or detailed.", metavar="LEVEL")
    ] = "summary",
    seed: Annotated[int | None, Option("--seed", help="Makes requests without a seed repeatable.", metavar="N")] = None,
    print_command: Annotated[
        bool, Option("--print-command", help="Print how vLLM, SGLang and llama.cpp would serve the same, and exit.")
    ] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No banner, and only warnings in the log.")] = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API and with a page at /."""
    if model_name and model.model and model_name != model.model:
        raise ConfigError(f"--model {model.model} contradicts {model_name}: leave one of them out")
    model.model = model.model or model_name
    if not model.model:
        raise ConfigError("there is no model: write headstart serve MODEL (a directory, a GGUF file or a hub id such as org/name)")
    if print_command or model.backend == "vllm":
        keys = _keys(api_key or [], api_key_file)
        native_only = {
            "--open-metrics": open_metrics,
            "--allowed-host": allowed_host,
            "--max-queue": max_queue != 256,
            "--max-n": max_n != 16,
            "--max-body": max_body != "8MiB",
            "--request-timeout": request_timeout != 600.0,
            "--drain-timeout": drain_timeout != 60.0,
            "--metrics-prefix": metrics_prefix != "headstart:",
        }
        door = Door(host, port, served_model_name or _name(model.model), None, tuple(allowed_origin or ()), chat_template, request_metrics)
        _elsewhere(model, speculation, seed, door, keys, [name for name, set_ in native_only.items() if set_], print_command, quiet)
        raise Exit(0)
    _require_extra()
    from headstart.core.config import parse_bytes
    from headstart.server.limits import Limits
    from headstart.server.run import serve as run
    from headstart.server.settings import Settings

    settings = Settings(
        host=host,
        port=port,
        served_name=served_model_name or _name(model.model),
        api_keys=_keys(api_key or [], api_key_file),
        open_metrics=open_metrics,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(allowed_origin or ()),
        max_queue=max_queue,
        request_timeout=request_timeout or None,
        drain_seconds=drain_timeout,
        metrics_prefix=metrics_prefix,
        request_metrics=request_metrics,
        limits=Limits(n=max_n, body_bytes=parse_bytes("max_body", max_body)),
    )
    config = speculation.config()
    template = None if chat_template is None else _read(chat_template, "--chat-template")
    _log_to_stderr(quiet)
    loaded: list[LLM] = []

    def load() -> LLM:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from headstart.api import LLM

        loaded.append(LLM(model.model or "", speculative_config=config, chat_template=template, seed=seed, **model.arguments()))
        return loaded[0]

    def ready(url: str) -> None:
        if not quiet:
            for line in banner(settings, loaded[0].notes, url):
                note(line)

    if not quiet:
        note(f"loading {model.model} …")
    run(settings, load, ready)
    raise Exit(0)


def _elsewhere(
    model: ModelOptions,
    speculation: SpeculationOptions,
    seed: int | None,
    door: Door,
    keys: Sequence[str],
    native_only: Sequence[str],
    print_command: bool,
    quiet: bool,
) -> None:
    """Other servers: their command lines, or vLLM's started."""
    from headstart.backends.commands import equivalents
    from headstart.core.config import build_config

    config, notes = build_config(model.model or "", {**model.arguments(), "seed": seed, "speculative_config": speculation.config()})
    if len(keys) > 1:
        raise ConfigError(f"{len(keys)} API keys: the other servers take one, leave all but one out")
    door = replace(door, api_key=keys[0] if keys else None)
    if door.chat_template is not None:
        _read(door.chat_template, "--chat-template")
    if print_command:
        for name in native_only:
            print(f"# {name}: only headstart's own server has it")
        print("\n".join(equivalents(config, door)))
        return
    if native_only:
        raise ConfigError(f"{native_only[0]} has no effect with --backend vllm: it belongs to headstart's own server, leave it out")
    from headstart.backends.vllm.serve import serve as run

    for line in notes:
        note(line)
    run(config, door, (lambda _: None) if quiet else note, quiet)


def banner(settings: Settings, notes: Sequence[str], url: str) -> list[str]:
    """What runs, where, and how to try it: at most 8 lines."""
    key = "on" if settings.api_keys else "off"
    lines = [*unsaid(notes)[-4:], f"API: {url}/v1, page: {url}/, model name {settings.served_name}, API key {key}"]
    if not settings.api_keys and settings.host in ("0.0.0.0", "::", ""):
        lines.append(f"warning: {settings.host} is open to the network and there is no API key: add --api-key")
    auth = " -H 'Authorization: Bearer KEY'" if settings.api_keys else ""
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    return [*lines, f"try: curl {url}/v1/chat/completions{auth} -H 'Content-Type: application/json' -d '{body}'"]


def _require_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        raise ConfigError(f"headstart serve needs {e.name}, which is not installed: pip install 'headstart[server]'") from None


def _name(model: str) -> str:
    """The model's name in the API: a hub id as it stands, of a path the last part."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def _keys(given: Sequence[str], file: str | None) -> tuple[str, ...]:
    keys = list(given)
    if os.environ.get("HEADSTART_API_KEY"):
        keys.append(os.environ["HEADSTART_API_KEY"])
    if file is not None:
        found = [line.strip() for line in _read(file, "--api-key-file").splitlines() if line.strip()]
        if not found:
            raise ConfigError(f"--api-key-file {file} holds no key: write one a line")
        keys += found
    return tuple(dict.fromkeys(keys))


def _read(file: str, flag: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{flag} {file} cannot be read: {getattr(e, 'strerror', None) or 'it is not UTF-8 text'}") from None


def _log_to_stderr(quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    for name in ("headstart", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING if quiet or name != "headstart" else logging.INFO)
    if os.environ.get("HEADSTART_DEBUG"):
        logging.getLogger("headstart").setLevel(logging.DEBUG)
