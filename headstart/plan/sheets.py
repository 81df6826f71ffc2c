"""The plan in words: its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.forms.sheet import Sheet


def size(value: float | None) -> str:
    """Bytes: KiB for what a token takes, MB and GB beyond."""
    if value is None:
        return "-"
    if abs(value) < 1e6:
        return f"{value / 1024:.4g} KiB"
    return f"{value / 1e6:.3g} MB" if abs(value) < 1e9 else f"{value / 1e9:.4g} GB"


def count(value: float) -> str:
    """Weights."""
    return f"{value / 1e9:.4g}B" if value >= 1e9 else f"{value / 1e6:.4g}M"


def sheets(found: Mapping[str, Any]) -> list[Sheet]:
    """Every table that has rows."""
    return [s for s in (_weights(found), _kv(found), _splits(found), *_speeds(found)) if s.rows]


def headline(found: Mapping[str, Any]) -> list[str]:
    """What is planned, in a few lines."""
    t, d = found["target"], found["draft"]
    active = f", {count(t['active_parameters'])} for a token" if t["active_parameters"] < 0.8 * t["parameters"] else ""
    lines = [
        f"{t['name']}: {count(t['parameters'])} weights{active}, {t['layers']} layers, context {t['max_len']:,} ({t['source']})",
        f"{t['attention']}",
    ]
    if d:
        lines.append(f"draft {d['name']}: {count(d['parameters'])} weights, {d['layers']} layers; {d['attention']}")
    return lines


def _weights(found: Mapping[str, Any]) -> Sheet:
    models = [m for m in (found["target"], found["draft"]) if m]
    kinds = ("float32", "bfloat16", "fp8", "int4")
    sheet = Sheet("Weights", "model", *(k.replace("bfloat16", "16 bit").replace("fp8", "8 bit") for k in kinds))
    for m in models:
        sheet.add(m["name"], *(size(m["weight_bytes"][k]) for k in kinds))
    return sheet


def _kv(found: Mapping[str, Any]) -> Sheet:
    kv, s = found["kv"], found["settings"]
    sheet = Sheet(f"Keys and values, in {s['kv_dtype']}", "what", "bytes")
    sheet.add("a token, target", size(kv["target_bytes_per_token"]))
    if kv["bytes_per_token_beyond_windows"] != kv["target_bytes_per_token"]:
        sheet.add("a token where all windows are full", size(kv["bytes_per_token_beyond_windows"]))
    if kv["draft_bytes_per_token"]:
        sheet.add("a token, draft", size(kv["draft_bytes_per_token"]))
    sheet.add(f"a sequence of {s['context']:,} tokens ({kv['pages']:,} pages of {s['block_size']})", size(kv["context_bytes"]))
    both = " in both models" if kv["draft_bytes_per_token"] else ""
    sheet.add(f"reserved for {kv['step_slots']} drafts of a step{both}", size(kv["step_bytes"]))
    for g in kv["given_back"]:
        sheet.add(f"given back after it, alpha {g['alpha']}: {g['slots']:.1f} slots", size(g["bytes"]))
    return sheet


def _splits(found: Mapping[str, Any]) -> Sheet:
    title = f"On each of n x {found['device']['name']}, {found['settings']['memory_utilization']:.0%} of its memory"
    sheet = Sheet(title, "n", "weights", "working", "left for KV", f"sequences of {found['settings']['context']:,}", "longest alone")
    for s in found["splits"]:
        if s["problem"]:
            sheet.add(str(s["devices"]), "-", "-", "-", s["problem"], "-")
            continue
        left = size(s["room"]) if s["room"] > 0 else f"{size(-s['room'])} too few"
        sheet.add(str(s["devices"]), size(s["weights"]), size(s["working"]), left, f"{s['batch']:,}", f"{s['longest']:,}")
    return sheet


def _speeds(found: Mapping[str, Any]) -> list[Sheet]:
    out = []
    for each in found["speed"]:
        n, drafter = each["devices"], found["drafter"] or "drafts that cost nothing"
        title = f"Tokens a second on {f'{n} x ' if n > 1 else ''}{found['device']['name']}, {drafter}, alpha {each['alpha']}"
        title += f"\n{_crossover(each, found['settings']['num_speculative_tokens'])}"
        sheet = Sheet(title, "batch", "plain", "with drafts", "each user", "speed-up", "best k")
        for b in each["batches"]:
            rates = (f"{b[name]:.0f}" if b[name] >= 10 else f"{b[name]:.1f}" for name in ("plain", "speculative", "per_user"))
            sheet.add(str(b["batch"]), *rates, f"{b['speedup']:.2f}x", str(each["best_k"][str(b["batch"])]))
        out.append(sheet)
    return out


def _crossover(each: Mapping[str, Any], k: int) -> str:
    stretches, most = each["pays_at"], each["largest_batch"]
    if stretches == [[1, most]]:
        return f"k = {k} pays at every batch that fits, up to {most:,}"
    if not stretches:
        return f"k = {k} pays at no batch that fits"
    if len(stretches) == 1 and stretches[0][0] == 1:
        return f"k = {k} stops paying at batch {stretches[0][1] + 1:,}"
    return f"k = {k} pays at batches " + " and ".join(f"{a:,} to {b:,}" if b > a else f"{a:,}" for a, b in stretches)
