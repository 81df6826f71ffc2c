"""`headstart doctor`: what serves here and why, how fast memory is read, which vLLM there is, and what a pass of a model costs."""

from __future__ import annotations

import json
from typing import Annotated, Any

from typer import Option

import headstart
from headstart.cli.options import ModelOptions
from headstart.cli.session import open_llm

_WIDTHS = (1, 2, 4, 8, 16, 32)
_BYTES = 256 << 20  # read for the bandwidth, where no model says how much


def doctor(model: ModelOptions, *, as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False) -> None:
    """Say which kernels serve and why, how fast memory is read, and with --model what a pass costs by its rows."""
    from headstart.backends.vllm.installation import describe
    from headstart.bench.summary import machine
    from headstart.kernels.library import active
    from headstart.kernels.measure import read_bandwidth

    serves, size = active(), _BYTES
    found: dict[str, Any] = {"headstart": headstart.__version__, **machine(), "kernels": serves.path, "kernels_why": serves.why}
    if model.model:
        loaded = _loaded(model)
        size = loaded["weight_bytes"]
        found |= loaded
    found["read_gb_per_s"] = round(read_bandwidth(size) / 1e9, 1)
    found["vllm"] = describe(model.vllm_python)
    print(json.dumps(found) if as_json else "\n".join(_lines(found)))


def _loaded(options: ModelOptions) -> dict[str, Any]:
    """What a model runs as, and milliseconds of its passes by their rows."""
    from headstart.bench.width import measure
    from headstart.runtime.width import keep

    llm = open_llm(options, None, quiet=True)
    target = llm.engine.target.model
    native = getattr(target, "native", None) is not None
    curve = measure(llm, _WIDTHS)
    keep(llm.engine.target, curve)  # a start with drafts takes the same figures
    return {
        "model": options.model,
        "dtype": str(target.dtype).removeprefix("torch."),
        "quantization": options.quantization,
        "native_pass": native,
        "weight_bytes": getattr(target, "weight_bytes", 0),
        "width_curve_ms": {rows: round(1e3 * seconds, 2) for rows, seconds in curve.items()},
    }


def _lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"headstart {headstart.__version__}, torch {found['torch']}, Python {found['python']}",
        f"processor    {found['processor']}, {found['threads']} threads",
        f"kernels      {found['kernels']}: {found['kernels_why']}",
        f"memory       {found['read_gb_per_s']} GB/s, read once from end to end",
        *found["vllm"],
    ]
    if "width_curve_ms" not in found:
        return lines
    curve, size = found["width_curve_ms"], found["weight_bytes"]
    stored, way = found["quantization"] or found["dtype"], "one native call" if found["native_pass"] else "torch"
    lines.append(f"model        {found['model']}: {size / 1e6:.0f} MB in {stored}, {way} per pass")
    if curve:
        one, limit = curve[min(curve)], size / found["read_gb_per_s"] / 1e6
        lines.append(
            f"limit        {limit:.1f} ms to read the weights; a pass of one row takes {one:.1f} ms: {limit / one:.0%} of that speed"
        )
        lines.append("")
        lines += [f"{rows:>5} rows  {ms:>8.1f} ms  {ms / one:>5.2f}x" for rows, ms in curve.items()]
    return lines
