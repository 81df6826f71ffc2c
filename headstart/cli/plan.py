"""`headstart plan`: does it fit, and how fast will it be? Needs a config and no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from headstart.core.checks import integer, number
from headstart.core.config import parse_bytes
from headstart.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from headstart.plan.device import Device
    from headstart.plan.shape import Shape
    from headstart.plan.types import Ask

DEFAULT_CONTEXT = 4096


@dataclass
class WhatOptions:
    """What is planned."""

    draft: Annotated[str | None, Option("--draft", "-d", help="A draft model, or ngram or suffix, which cost nothing.", metavar="D")] = None
    num_speculative_tokens: Annotated[int, Option("--num-speculative-tokens", "-k", help="Drafts per step.", metavar="K")] = 5
    alpha: Annotated[
        str | None, Option("--alpha", help="How likely a draft stands: 0.7, or several to compare. Default: 0.6,0.7,0.8.", metavar="A")
    ] = None
    analysis: Annotated[str | None, Option(help="analysis.json of headstart analyse, instead of --alpha.", metavar="FILE")] = None
    dtype: Annotated[
        str | None,
        Option(help="Of the weights: bfloat16, float16, float32, fp8, int8 or int4. Default: what the device likes.", metavar="TYPE"),
    ] = None
    kv_dtype: Annotated[str | None, Option(help="Of keys and values: bfloat16, float16, float32 or fp8.", metavar="TYPE")] = None
    context: Annotated[
        int | None, Option("--context", "--max-model-len", help="Tokens of a sequence. Default: 4096, or the model's own.", metavar="N")
    ] = None


@dataclass
class WhereOptions:
    """What it is to run on."""

    device: Annotated[
        str | None,
        Option(help="a100-40, a100-80, h100, h200, b200, l4, l40s, rtx-4090, rtx-5090, or here (measured). Default: here.", metavar="NAME"),
    ] = None
    memory: Annotated[str | None, Option("--memory", help="Memory of the device, such as 80GB: instead of its own.", metavar="SIZE")] = None
    tensor_parallel_size: Annotated[
        int | None, Option("--tensor-parallel-size", "--devices", help="Devices that share the model.", metavar="N")
    ] = None
    batch: Annotated[int | None, Option("--batch", "--max-num-seqs", help="Sequences at once.", metavar="B")] = None
    memory_utilization: Annotated[
        float, Option("--memory-utilization", "--gpu-memory-utilization", help="Share of the memory to use.", metavar="X")
    ] = 0.9
    block_size: Annotated[int, Option("--block-size", help="Tokens per KV page.", metavar="N")] = 16


def plan(
    model: Annotated[str | None, Argument(help="Built-in name, folder, config.json, GGUF file or hub id.", metavar="MODEL")] = None,
    *,
    what: WhatOptions,
    where: WhereOptions,
    listed: Annotated[bool, Option("--list", help="Print the built-in models and devices.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Memory, splits and speed of a model, with and without drafts, from its config alone.

    headstart plan Llama-3.3-70B --draft Llama-3.2-1B --device h100

    headstart plan ./model --draft ngram --device here --json

    Exit code 1 when it does not fit.
    """
    if listed:
        _list()
        return
    if model is None:
        raise ConfigError("there is no model: headstart plan MODEL (headstart plan --list names those built in)")
    from headstart.plan.document import document

    found = document(_ask(model, what, where))
    if as_json:
        from headstart.cli.document import write

        write(found)
    else:
        _print(found)
    if not found["fits"]:
        raise Exit(1)


def _ask(model: str, what: WhatOptions, where: WhereOptions) -> Ask:
    """Everything checked and resolved. Raises ConfigError, ModelError."""
    from headstart.plan.source import find_shape
    from headstart.plan.types import KV_BYTES, LOOKUPS, WEIGHT_BYTES, Ask

    integer("--num-speculative-tokens", what.num_speculative_tokens, 1, 128)
    device = _device(where)
    dtype = _one_of("--dtype", what.dtype or device.dtype, WEIGHT_BYTES)
    kv_dtype = _one_of("--kv-dtype", what.kv_dtype or (dtype if dtype in KV_BYTES and dtype != "fp8" else "bfloat16"), KV_BYTES)
    number("--memory-utilization", where.memory_utilization, 0.0, 1.0, open_low=True)
    integer("--block-size", where.block_size, 1, 1 << 16)
    for name, value in (("--context", what.context), ("--tensor-parallel-size", where.tensor_parallel_size), ("--batch", where.batch)):
        if value is not None:
            integer(name, value, 1, 1 << 31)
    alphas = _alphas(what)
    target, source = find_shape(model)
    draft: Shape | None = None
    if what.draft is not None and what.draft not in LOOKUPS:
        draft, _ = find_shape(what.draft)
    return Ask(
        target=target,
        source=source,
        draft=draft,
        draft_name=what.draft,
        k=what.num_speculative_tokens,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        context=what.context or min(DEFAULT_CONTEXT, target.max_len),
        devices=where.tensor_parallel_size,
        batch=where.batch,
        share=where.memory_utilization,
        block_size=where.block_size,
        alphas=alphas,
    )


def _one_of(option: str, value: str, valid: Any) -> str:
    value = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}.get(value, value)
    if value not in valid:
        raise ConfigError(f"{option} {value} is not known: {nearest(value, valid)}")
    return value


def _alphas(what: WhatOptions) -> list[tuple[str, list[float]]]:
    """(in words, acceptance by position) of each case. Raises ConfigError."""
    from headstart.plan.document import acceptance_of
    from headstart.plan.types import LOOKUPS

    k = what.num_speculative_tokens
    if what.analysis is not None:
        if what.alpha is not None:
            raise ConfigError("--alpha and --analysis both say how likely drafts stand: leave one of them out")
        return [acceptance_of(what.analysis, what.draft, k)]
    default = "0.4,0.6,0.8" if what.draft in LOOKUPS else "0.6,0.7,0.8"
    out = []
    for part in (what.alpha or default).split(","):
        try:
            value = float(part)
        except ValueError:
            raise ConfigError(f"--alpha {what.alpha} must be a probability, or several: 0.6,0.8") from None
        number("--alpha", value, 0.0, 1.0)
        out.append((f"{value:g}", [value] * k))
    return out


def _device(where: WhereOptions) -> Device:
    """The device; with --memory alone, this machine's speed and that memory."""
    from dataclasses import replace

    from headstart.plan.device import find_device

    memory = None if where.memory is None else parse_bytes("--memory", where.memory)
    device = find_device(where.device or "here")
    return device if memory is None else replace(device, memory=memory, name=f"{device.name} with {where.memory}")


def _list() -> None:
    from headstart.plan.device import DEVICES
    from headstart.plan.source import names

    print("models:")
    for name in names():
        print(f"  {name}")
    print("devices:")
    for key, d in DEVICES.items():
        print(f"  {key:<10}{d.name}: {d.memory / 2**30:.0f} GiB, {d.bandwidth / 1e9:.0f} GB/s, {d.operations / 1e12:.0f} Tflop/s")
    print("  here      this machine, measured")


def _print(found: dict[str, Any]) -> None:
    from rich.text import Text

    from headstart.forms.table import stdout, table
    from headstart.plan.sheets import headline, sheets

    console = stdout()
    for line in headline(found):
        console.print(line, markup=False, soft_wrap=True)
    for sheet in sheets(found):
        console.print(table(sheet, console.width))
    for line in found["assumptions"]:
        console.print(f"assumed: {line}", markup=False, style="dim", soft_wrap=True)
    for line in found["notes"]:
        console.print(f"note: {line}", markup=False, style="dim", soft_wrap=True)
    console.print()
    console.print(Text(found["words"], "bold green" if found["fits"] else "bold red"), soft_wrap=True)
    for where, line in found["commands"]:
        print(f"{where}: {line}")  # unwrapped, so that it can be copied
