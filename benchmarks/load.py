"""Time and memory of a start: from nothing to an engine, in a process of its own for each checkpoint.

    python benchmarks/load.py MODEL [MODEL ...] [--dtype float32] [--quantization int8]

Prints seconds of the imports and of the load, the peak of resident memory above the imports, and the bytes that weights take once loaded.
Memory is watched in a second start, since watching slows the first down.
Pages of a mapped file count as resident while they are read, so a safetensors file shows once more in the peak of all of memory; "own"
leaves them out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

CHILD = """
import json, sys, threading, time
t = time.perf_counter()
from headstart import LLM
import torch, transformers
from headstart.engine import build
imports = time.perf_counter() - t

def status(*names):
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return sum(int(fields[n].split()[0]) for n in names) * 1024

peak, done = {"all": 0, "own": 0}, False
def watch():
    while not done:
        peak["all"] = max(peak["all"], status("VmRSS"))
        peak["own"] = max(peak["own"], status("RssAnon"))
        time.sleep(0.005)
before = status("RssAnon")
if sys.argv[3] == "watched":
    threading.Thread(target=watch, daemon=True).start()
t = time.perf_counter()
llm = LLM(sys.argv[1], kv_cache_memory="64MiB", max_model_len=256, **json.loads(sys.argv[2]))
load = time.perf_counter() - t
done = True
model = llm.engine.target.model
print(json.dumps({"imports_s": imports, "load_s": load, "peak": peak["all"], "own_peak": peak["own"] - before,
                  "after": status("RssAnon") - before, "weights": model.weight_bytes, "parameters": model.parameters}))
"""


def start(model: str, options: dict[str, str], how: str) -> dict[str, float]:
    """What one start measured. Raises RuntimeError with what it said last."""
    done = subprocess.run([sys.executable, "-c", CHILD, model, json.dumps(options), how], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization")
    args = parser.parse_args()
    options = {"dtype": args.dtype} | ({"quantization": args.quantization} if args.quantization else {})
    print("| checkpoint | imports s | load s | weights MiB | own memory MiB: peak, after | resident peak MiB |\n|---|---|---|---|---|---|")
    for model in args.models:
        try:
            timed = start(model, options, "timed")
            f = start(model, options, "watched") | {k: timed[k] for k in ("imports_s", "load_s")}
        except RuntimeError as e:
            print(e, file=sys.stderr)
            return 1
        mib = {k: f"{f[k] / 2**20:.0f}" for k in ("weights", "own_peak", "after", "peak")}
        name = model.rstrip("/").rpartition("/")[2]
        print(
            f"| {name} | {f['imports_s']:.1f} | {f['load_s']:.1f} | {mib['weights']} | {mib['own_peak']}, {mib['after']} | {mib['peak']} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
