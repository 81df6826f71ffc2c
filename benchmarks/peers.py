"""The same prompts, weights and dtype through headstart and other engines, in turns: one table of speeds and of texts that differ.

    python benchmarks/peers.py [--openvino-python VENV/bin/python] [--vllm-python ...] [--llama-server ...] [--limit 6] [--rounds 2]

transformers comes from this environment unless another one is named; engines that are not named are left out. See README.md
here for how to set each up. All answers are greedy and end at the end of text or after `--tokens`. Every engine is asked for the
same drafts per step. "same as its plain" counts the answers whose tokens equal those of the same engine without drafts: that is
what lossless means, and a low count is not an error of this script. "decoding" leaves out the time to the first token, which each
prompt is asked for by itself: no engine keeps what it has read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoints

from headstart.core import openmp

WORKER = Path(__file__).with_name("peer_worker.py")
NAMES = {"plain": "plain", "lookup": "prompt lookup", "draft": "draft model"}


@dataclass
class Arm:
    """One engine in one mode: a process of its own, and what it answered."""

    engine: str
    mode: str
    process: subprocess.Popen[str]
    version: str = ""
    speeds: list[float] = field(default_factory=list)  # tokens a second, the prompt included
    decoding: list[float] = field(default_factory=list)  # behind the first token
    texts: list[list[int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.engine} {NAMES.get(self.mode, self.mode)}"

    def hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"{self.name} ended with code {self.process.wait()}: run again with --verbose to see why")
        return json.loads(line)

    def ask(self, ids: list[int], tokens: int) -> tuple[list[int], float]:
        """The answer to a prompt and the seconds it took."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"ids": ids, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        answer = self.hear()
        return answer["ids"], answer["seconds"]

    def measure(self, ids: list[int], tokens: int, eos: int) -> None:
        _, first = self.ask(ids, 1)
        text, seconds = self.ask(ids, tokens)
        text = text[: text.index(eos)] if eos in text else text  # some count the end, some do not
        self.texts.append(text)
        self.speeds.append(len(text) / seconds)
        self.decoding.append((len(text) - 1) / max(seconds - first, 1e-9))


def start(python: str, engine: str, mode: str, options: dict[str, Any], verbose: bool) -> Arm:
    """A worker that is loading; `hear` waits until it is ready."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(options["threads"]), "TOKENIZERS_PARALLELISM": "false"}
    if openmp.WAITS_PASSIVELY and engine != "headstart":  # our own choice for how threads wait is not theirs
        del environment[openmp.VARIABLE]
    if python != sys.executable:  # another environment: ours must not be found from there
        environment.pop("PYTHONPATH", None)
    command = [python, "-P", str(WORKER), json.dumps({**options, "engine": engine, "mode": mode})]
    errors = None if verbose else subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    return Arm(engine, mode, process)


def export(python: str, model: str, out: Path) -> str:
    """The model in OpenVINO's form, made once by the optimum-intel of that environment."""
    if not (out / "openvino_model.xml").exists():
        print(f"exporting {model} for OpenVINO to {out} …", file=sys.stderr)
        task = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
        command = [str(Path(python).with_name("optimum-cli")), "export", "openvino", "--model", model, *task, str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint folder (safetensors and tokenizer); default: the demo model")
    parser.add_argument("--draft", help="checkpoint folder of a draft model, for the arms with one")
    parser.add_argument("--transformers-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--openvino-python", metavar="PATH")
    parser.add_argument("--vllm-python", metavar="PATH")
    parser.add_argument("--vllm-eager", action="store_true", help="without its compilation, which takes minutes on few cores")
    parser.add_argument("--llama-server", metavar="PATH", help="llama.cpp's server; the demo model only")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps converted models between runs; default: a temporary folder")
    parser.add_argument("--data", help="questions as for headstart bench; only their first turns are asked")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-k", type=int, default=5, help="drafts per step")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--verbose", action="store_true", help="let the engines write to stderr")
    return parser.parse_args()


def arms(args: argparse.Namespace, folder: Path, eos: int) -> list[Arm]:
    """Every engine that was named, in every mode; ours first."""
    from headstart.models.demo import demo_model

    modes = ["plain", "lookup", *(["draft"] if args.draft else [])]
    options: dict[str, Any] = {"model": args.model, "draft": args.draft, "k": args.k, "eos": eos}
    options |= {"dtype": args.dtype, "threads": args.threads, "context": args.context, "eager": args.vllm_eager}
    out = [start(sys.executable, "headstart", mode, options, args.verbose) for mode in modes]
    out += [start(args.transformers_python, "transformers", mode, options, args.verbose) for mode in modes]
    if args.openvino_python:
        options["openvino_model"] = export(args.openvino_python, args.model, folder / "openvino")
        if args.draft:
            options["openvino_draft"] = export(args.openvino_python, args.draft, folder / "openvino-draft")
        out += [start(args.openvino_python, "openvino", mode, options, args.verbose) for mode in modes]
    if args.vllm_python:
        out += [start(args.vllm_python, "vllm", mode, options, args.verbose) for mode in modes]
    if args.llama_server:
        gguf = checkpoints.unquantised_gguf(demo_model(), folder / f"demo-{args.dtype}.gguf", args.dtype)
        options |= {"llama_server": args.llama_server, "gguf": gguf}
        out += [start(sys.executable, "llama.cpp", mode, options, args.verbose) for mode in ("plain", "ngram-simple", "ngram-mod")]
    for arm in out:
        arm.version = arm.hear()["version"]
    return out


def table(found: list[Arm]) -> list[str]:
    """Medians over prompts and rounds; ratios pair by pair."""

    def ratio(a: list[float], b: list[float]) -> str:
        return f"{statistics.median(x / y for x, y in zip(a, b, strict=True) if y):.2f}"

    def same(a: Arm, b: Arm) -> str:
        return f"{sum(x == y for x, y in zip(a.texts, b.texts, strict=True))} of {len(a.texts)}"

    ours = found[0]
    rows = [("", "tok/s", "x its plain", "same as its plain", "x headstart plain", "same as headstart", "decoding", "x headstart plain")]
    for arm in found:
        plain = next(a for a in found if a.engine == arm.engine)
        own = ("", "") if arm is plain else (ratio(arm.speeds, plain.speeds), same(arm, plain))
        with_prompt = (f"{statistics.median(arm.speeds):.1f}", *own, ratio(arm.speeds, ours.speeds), same(arm, ours))
        rows.append((arm.name, *with_prompt, f"{statistics.median(arm.decoding):.1f}", ratio(arm.decoding, ours.decoding)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))) for row in rows]


def main() -> None:
    args = arguments()
    if args.llama_server and args.model:
        raise SystemExit("--llama-server runs the demo model only: leave --model out")
    from headstart.bench.workload import load
    from headstart.models.demo import demo_model
    from headstart.runtime.checkpoint import open_checkpoint
    from headstart.runtime.tokenizer import load_tokenizer

    questions = load(args.data, args.limit)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        if not args.model:
            args.model = str(folder / "demo")
            checkpoints.write(Path(args.model), *checkpoints.read(demo_model()))
        checkpoint = open_checkpoint(args.model)
        tokenizer, eos = load_tokenizer(checkpoint), checkpoint.eos_ids[0]
        prompts = []
        for q in questions:
            text = tokenizer.apply_chat_template([{"role": "user", "content": q.turns[0]}], tokenize=False, add_generation_prompt=True)
            prompts.append(list(tokenizer(text, add_special_tokens=False).input_ids))
        found = arms(args, folder, eos)
        try:
            for arm in found:
                arm.ask(prompts[0], 8)  # warm
            for round_ in range(args.rounds):
                for i, ids in enumerate(prompts):
                    turn = (round_ * len(prompts) + i) % len(found)
                    for arm in found[turn:] + found[:turn]:
                        arm.measure(ids, args.tokens, eos)
                    print(f"round {round_ + 1}, prompt {i + 1} of {len(prompts)}", end="\r", file=sys.stderr, flush=True)
        finally:
            for arm in found:
                arm.process.stdin.close()  # type: ignore[union-attr]
                arm.process.wait(60)
    versions = ", ".join(f"{a.engine} {a.version}" for a in found if a.mode == "plain")
    model = "SmolLM2-135M-Instruct" if args.model.endswith("demo") else Path(args.model).name
    print(f"{model}, {args.dtype}, greedy, k={args.k}, {len(prompts)} prompts, up to {args.tokens} tokens", end=", ")
    print(f"{args.rounds} rounds, {args.threads} threads")
    print(f"{versions}\n" + "".join(f"note: {note}\n" for note in checkpoint.notes))
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
