"""From what is asked to the whole plan: one dictionary of plain numbers, which `--json` prints and the tables draw.

Bytes, seconds, tokens. `VERSION` changes when a field changes its meaning or goes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headstart import __version__
from headstart.core.errors import ConfigError, ModelError, nearest
from headstart.core.memory import blocks_of, bytes_per_token, sequence_bytes
from headstart.core.theory import expected_tokens
from headstart.plan import speed
from headstart.plan.commands import commands
from headstart.plan.fit import Fit, fit, splits
from headstart.plan.shape import Shape
from headstart.plan.types import KV_BYTES, WEIGHT_BYTES, Ask

VERSION = 1
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PADDING = 1024  # vocabularies that differ by no more may differ in padding alone


def document(ask: Ask) -> dict[str, Any]:
    """The plan."""
    models = [(ask.target, WEIGHT_BYTES[ask.dtype]), *([(ask.draft, WEIGHT_BYTES[ask.dtype])] if ask.draft else [])]
    kv = KV_BYTES[ask.kv_dtype]
    every, first = splits(models, kv, ask.device, ask.share, ask.context)
    chosen = fit(models, kv, ask.device, ask.share, ask.devices, ask.context) if ask.devices else every[0]
    runs = chosen if chosen.fits else first  # what the speeds are for: what was asked for, or what it takes
    found: dict[str, Any] = {
        "version": VERSION,
        "headstart": __version__,
        "settings": {
            "dtype": ask.dtype,
            "kv_dtype": ask.kv_dtype,
            "context": ask.context,
            "num_speculative_tokens": ask.k,
            "memory_utilization": ask.share,
            "block_size": ask.block_size,
            "devices": ask.devices,
            "batch": ask.batch,
        },
        "target": _model(ask.target, ask.source),
        "draft": _model(ask.draft, "") if ask.draft else None,
        "drafter": ask.draft_name,
        "device": asdict(ask.device),
        "kv": _kv(ask, kv),
        "splits": [_split(f) for f in every],
        "asked": _split(chosen),
        "fits": chosen.fits,
        "devices_needed": first.devices if first else None,
        "notes": notes(ask),
    }
    found["words"] = _verdict(ask, chosen, first)
    found["speed"] = [_speed(ask, runs, words, a) for words, a in ask.alphas] if runs else []
    found["assumptions"] = _assumptions(ask)
    found["commands"] = commands(ask, runs, _batch(ask, runs)) if runs else []
    return found


def notes(ask: Ask) -> list[str]:
    """What a reader should know. Raises ModelError for a draft that cannot draft for this target."""
    out = []
    if ask.draft is not None:
        t, d = ask.target, ask.draft
        if abs(t.vocab - d.vocab) > _PADDING:
            raise ModelError(
                f"{d.name} has {d.vocab:,} vocabulary rows, {t.name} {t.vocab:,}: their ids mean different strings; take a draft of "
                f"the target's own series"
            )
        if t.vocab != d.vocab:
            out.append(f"vocabularies of {t.vocab:,} and {d.vocab:,} rows: fine if only padding differs; vLLM wants equal sizes")
        if d.parameters >= t.parameters:
            out.append(f"the draft has {d.parameters / 1e9:.3g}B weights, the target {t.parameters / 1e9:.3g}B: are they swapped?")
        if d.max_len < ask.context:
            out.append(f"the draft's own context is {d.max_len:,}: longer sequences go on without drafts")
    if ask.context > ask.target.max_len:
        raise ConfigError(f"--context {ask.context} is above the model's own {ask.target.max_len}: lower it")
    if ask.dtype == "int4":
        out.append("int4 is counted as 4.25 bits a weight, as AWQ and GPTQ store it; here, by --quantization int4, it is 5")
    if ask.target.experts:
        e = ask.target.experts
        out.append(
            f"{e.chosen} of {e.count} experts run for a token: a wider pass reads more of them, so drafts cost more than in a dense model"
        )
    return out


def _model(shape: Shape, source: str) -> dict[str, Any]:
    return {
        "name": shape.name,
        "source": source,
        "family": shape.family,
        "parameters": shape.parameters,
        "active_parameters": shape.active,
        "vocab": shape.vocab,
        "layers": shape.layers,
        "attention": shape.attention,
        "max_len": shape.max_len,
        "weight_bytes": {name: shape.parameters * size for name, size in WEIGHT_BYTES.items()},
    }


def _kv(ask: Ask, size: float) -> dict[str, Any]:
    """KV of a sequence: of the target, of the draft, of the drafts of one step."""
    target = bytes_per_token(ask.target.cache, size)
    draft = bytes_per_token(ask.draft.cache, size) if ask.draft else 0.0
    endless = sum(layer.numbers for layer in ask.target.cache if layer.window is None) * size
    pages = blocks_of(ask.context, ask.block_size)
    return {
        "target_bytes_per_token": target,
        "draft_bytes_per_token": draft,
        "bytes_per_token_beyond_windows": endless,
        "context_bytes": sequence_bytes(ask.target.cache, ask.context, size)
        + (sequence_bytes(ask.draft.cache, ask.context, size) if ask.draft else 0.0),
        "pages": pages,
        "page_bytes": (target + draft) * ask.block_size,
        "step_slots": ask.k,
        "step_bytes": ask.k * (target + draft),
        "step_target_bytes": ask.k * target,
        "given_back": [
            {"alpha": words, "slots": ask.k + 1 - expected_tokens(a), "bytes": (ask.k + 1 - expected_tokens(a)) * (target + draft)}
            for words, a in ask.alphas
        ],
    }


def _split(f: Fit) -> dict[str, Any]:
    return {**asdict(f), "room": f.room, "batch": f.batch, "fits": f.fits}


def _verdict(ask: Ask, chosen: Fit, first: Fit | None) -> str:
    """Whether it fits, in a sentence."""
    n, name = chosen.devices, ask.device.name
    weights = chosen.weights * n
    what = f"{weights / 1e9:.4g} GB of weights{' (draft included)' if ask.draft else ''} in {ask.dtype}"
    where = f"{n} x {name}" if n > 1 else name if ask.device.measured else f"one {name}"
    if chosen.fits:
        left = f"{chosen.room / 1e9:.3g} GB{' each' if n > 1 else ''}"
        return f"FITS: {what} on {where} leave {left} for KV: {chosen.batch:,} sequences of {ask.context:,} tokens"
    if chosen.problem:
        why = chosen.problem
    elif chosen.room <= 0:
        why = f"{what} do not fit on {where}, of which {chosen.budget * n / 1e9:.3g} GB may be used ({ask.share:.0%})"
    else:
        needs = f"a sequence of {ask.context:,} tokens needs {chosen.sequence / 1e9:.2g} GB"
        why = f"{what} fit on {where}, but {needs} of KV and {chosen.room / 1e9:.2g} GB are left"
    if first is None:
        more = "" if ask.device.measured else ", nor on 64 of them"
        return f"DOES NOT FIT: {why}{more}: take a smaller dtype, a smaller model or a larger device"
    return f"DOES NOT FIT: {why}; {first.devices} devices do" + (", and so does a shorter --context" if chosen.longest else "")


def _batch(ask: Ask, runs: Fit) -> int:
    """Sequences at once that commands ask for."""
    return min(ask.batch or 64, runs.batch)


def _speed(ask: Ask, runs: Fit, words: str, acceptance: Seq[float]) -> dict[str, Any]:
    """Plain and speculative tokens a second by batch size."""
    size, kv = WEIGHT_BYTES[ask.dtype], KV_BYTES[ask.kv_dtype]
    load = lambda shape: speed.Load(shape, ask.device, runs.devices, size, kv, ask.context)  # noqa: E731
    s = speed.Speed(load(ask.target), load(ask.draft) if ask.draft else None, acceptance)
    batches = sorted({b for b in BATCHES if b <= runs.batch} | ({ask.batch} if ask.batch and ask.batch <= runs.batch else set()))
    return {
        "alpha": words,
        "acceptance": list(acceptance),
        "tokens_per_pass": s.tokens,
        "devices": runs.devices,
        "batches": [
            {"batch": b, "plain": s.plain(b), "speculative": s.speculative(b), "per_user": s.speculative(b) / b, "speedup": s.gain(b)}
            for b in batches
        ],
        "largest_batch": runs.batch,
        "pays_at": [list(stretch) for stretch in s.pays_at(min(runs.batch, 4096))],
        "best_k": {str(b): _best_k(s, b) for b in batches},
    }


def _best_k(s: speed.Speed, batch: int) -> int:
    """The draft length that pays most at a batch size, up to the one asked for; 0 for none."""
    gains = [1.0, *(speed.Speed(s.target, s.draft, s.acceptance[:k]).gain(batch) for k in range(1, len(s.acceptance) + 1))]
    return max(range(len(gains)), key=gains.__getitem__)


def _assumptions(ask: Ask) -> list[str]:
    d = ask.device
    out = [
        f"{d.name}: {d.memory / 2**30:.4g} GiB, {d.bandwidth / 1e9:.4g} GB/s, {d.operations / 1e12:.3g} Tflop/s ({d.source})",
        f"a pass reads its weights and KV at {speed.BANDWIDTH_SHARE:.0%} of that bandwidth, then computes at "
        f"{speed.ARITHMETIC_SHARE:.0%} of that arithmetic",
    ]
    if not d.measured:
        out.append(
            f"{1e3 * speed.STEP:g} ms a step beside the pass, {1e3 * speed.DRAFT:g} ms beside each draft, {1e6 * speed.LAYER:g} us a layer "
            f"at least, {1e6 * d.link:g} us an all-reduce"
        )
    out.append(f"every sequence is {ask.context:,} tokens long; figures of a plan, not of a measurement: headstart bench measures")
    return out


def acceptance_of(path: str, draft: str | None, k: int) -> tuple[str, list[float]]:
    """Acceptance by position from an analysis.json: of the draft of that name, else of the best. Raises ConfigError."""
    try:
        found = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        drafters = {d["name"]: d for d in found["drafters"]}
        name = found["winner"] if draft is None else draft.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
        if name is None:
            raise ConfigError(f"--analysis {path} found no draft that pays: name one with --draft")
        if name not in drafters:
            raise ConfigError(f"--analysis {path} has no draft {name!r}: {nearest(name, drafters)}")
        acceptance = [float(a) for a in drafters[name]["acceptance_per_position"]]
    except OSError as e:
        raise ConfigError(f"--analysis {path} cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError) as e:
        if isinstance(e, ConfigError):
            raise
        raise ConfigError(f"--analysis {path} is not the analysis.json of headstart analyse ({type(e).__name__}: {e})") from None
    if not acceptance:
        raise ConfigError(f"--analysis {path}: {name!r} never drafted")
    return f"{name}, as analysed", [acceptance[min(i, len(acceptance) - 1)] for i in range(k)]
