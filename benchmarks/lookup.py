"""What drafting by lookup gives and costs, mostly without running the model: drafters are replayed on texts it once produced.

    python benchmarks/lookup.py questions --data FILE.jsonl [--keep FILE]   tokens per pass of ngram and suffix on benchmark questions
    python benchmarks/lookup.py edit [--run]                                a file rewritten with its old text as prediction
    python benchmarks/lookup.py corpus [--tokens 10000000]                  build time, size and look-up time of an index
    python benchmarks/lookup.py context [--tokens 50000]                    time and memory of indexing a long context

Replay is exact: with greedy decoding, and with sampling in `match` mode, a draft stands if and only if it is the token that plain
decoding gives there. `questions` takes lines with "category" and "turns" (Spec-Bench's form) and lets the demo model answer once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np

from headstart.core.estimates import WidthCurve
from headstart.core.pace import Pace
from headstart.core.params import SamplingParams
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import Drafter
from headstart.draft.hybrid import HybridDrafter, Member
from headstart.draft.ngram import NgramDrafter
from headstart.draft.prediction import PredictionDrafter
from headstart.draft.suffix import SuffixDrafter
from headstart.lookup.automaton import SuffixAutomaton

CORE = Path(__file__).parent.parent / "headstart" / "core"
CURVE = {1: 1.0, 2: 1.0, 4: 1.03, 8: 1.53, 16: 2.54, 32: 5.0}  # a pass by its rows, in passes of one: bf16, two cores, a calm run
OLD_FILES = [CORE / "blocks.py", CORE / "scheduler.py", CORE / "stopping.py"]  # 305 lines together


def begin(drafter: Drafter, number: int, prompt: list[int], prediction: tuple[int, ...] = ()) -> Sequence:
    """A sequence whose prompt the drafter has read."""
    seq = Sequence(number, f"{number}", 0, SamplingParams(), list(prompt), len(prompt), 0, prediction=prediction)
    for _ in range(1 + len(prompt) // 512):  # a step indexes that much
        drafter.observe([Chunk(seq, len(prompt))])
    return seq


def standing(drafts: list[int], coming: list[int]) -> int:
    """How many drafts are what comes."""
    kept = 0
    while kept < len(drafts) and drafts[kept] == coming[kept]:
        kept += 1
    return kept


def replay(drafter: Drafter, k: int, prompt: list[int], output: list[int], prediction: tuple[int, ...] = ()) -> tuple[int, int, int]:
    """(passes, drafted, accepted) of a drafter on a text that the target produced."""
    seq = begin(drafter, 0, prompt, prediction)
    passes = drafted = accepted = done = 0
    while done < len(output):
        drafts = drafter.propose([Chunk(seq, 1, min(k, len(output) - done - 1))])[0].tokens
        kept = standing(drafts, output[done:])
        seq.tokens += output[done : done + kept + 1]
        drafter.observe([Chunk(seq, 1, len(drafts))])
        passes, drafted, accepted, done = passes + 1, drafted + len(drafts), accepted + kept, done + kept + 1
    return passes, drafted, accepted


def paced(members: list[Member], rows: list[dict]) -> dict[str, float]:
    """Times plain decoding by category, when drafts are chosen as the engine does and a pass takes what CURVE says."""
    curve, drafter = WidthCurve(), HybridDrafter(members, Pace())
    curve.expect(CURVE)
    drafter.pace.curve.expect(CURVE)
    seconds, tokens = defaultdict(float), defaultdict(int)
    for number, row in enumerate(rows):
        seq, output, done = begin(drafter, number, row["prompt"]), row["output"], 0
        while done < len(output):
            k = drafter.length(seq, len(output) - done - 1)
            drafts = drafter.propose([Chunk(seq, 1, k)])[0].tokens if k else []
            kept = standing(drafts, output[done:])
            seq.tokens += output[done : done + kept + 1]
            done += kept + 1
            drafter.observe([Chunk(seq, 1, len(drafts))])
            drafter.pace.pass_took(1 + len(drafts), 1, curve(1 + len(drafts)))
            drafter.pace.end_step()
            seconds[row["category"]] += curve(1 + len(drafts))
        tokens[row["category"]] += len(output)
        seq.finish_reason = "stop"
        drafter.forget(seq)
    every = {c: tokens[c] / seconds[c] for c in tokens}
    return {"all": sum(tokens.values()) / sum(seconds.values()), **every}


def answers(data: Path, questions: int, tokens: int, keep: Path) -> list[dict]:
    """Plain answers of the demo model at temperatures 0 and 1, made once."""
    if keep.exists():
        return [json.loads(line) for line in keep.read_text().splitlines()]
    from headstart import LLM
    from headstart.models.demo import demo_model

    groups = defaultdict(list)
    for line in data.read_text().splitlines():
        groups[(item := json.loads(line))["category"]].append(item)
    each = questions // len(groups)
    chosen = [q for g in groups.values() for q in g[:: max(1, len(g) // each)][:each]]
    llm = LLM(str(demo_model()), max_model_len=4096, kv_cache_memory="4GiB", max_num_seqs=48)
    made = []
    for temperature in (0.0, 1.0):
        chats = [[{"role": "user", "content": q["turns"][0]}] for q in chosen]
        outputs = llm.chat(chats, SamplingParams(temperature=temperature, max_tokens=tokens, seed=7))
        for q, o in zip(chosen, outputs, strict=True):
            texts = {"prompt": o.prompt_token_ids, "output": o.outputs[0].token_ids}
            made.append({"category": q["category"], "temperature": temperature, **texts})
    keep.write_text("\n".join(json.dumps(m) for m in made))
    return made


def questions(args) -> None:
    rows = answers(args.data, args.questions, args.length, args.keep)
    drafters = [(f"ngram {high}..{low}, k={k}", lambda low=low, high=high: NgramDrafter(low, high), k)
                for low, high in ((2, 4), (1, 3)) for k in (3, 5, 10)]  # fmt: skip
    drafters.append(("suffix, up to k=24", lambda: SuffixDrafter(4.0, 0.1), 24))
    for temperature in (0.0, 1.0):
        chosen = [r for r in rows if r["temperature"] == temperature]
        print(f"temperature {temperature:g}: {len(chosen)} answers, {sum(len(r['output']) for r in chosen)} tokens")
        for name, make, k in drafters:
            passes, tokens = defaultdict(int), defaultdict(int)
            drafted = accepted = 0
            for r in chosen:
                p, d, a = replay(make(), k, r["prompt"], r["output"])
                passes[r["category"]] += p
                tokens[r["category"]] += len(r["output"])
                drafted, accepted = drafted + d, accepted + a
            total = sum(passes.values())
            groups = "  ".join(f"{c} {tokens[c] / passes[c]:.2f}" for c in passes)
            print(f"  {name:20s} {sum(tokens.values()) / total:.3f} tokens per pass, {drafted / total:5.2f} drafts per pass,"
                  f" {100 * accepted / max(drafted, 1):3.0f} % accepted   {groups}")  # fmt: skip
        print("  times plain, drafts as they pay and passes as long as CURVE says:")
        ngram, suffix = Member("ngram", NgramDrafter(1, 3), 10), Member("suffix", SuffixDrafter(4.0, 0.1), 24)
        for members in ([ngram], [suffix], [suffix, ngram]):
            speeds = "  ".join(f"{c} {x:.3f}" for c, x in paced(members, chosen).items())
            print(f"    {','.join(m.name for m in members):16s} {speeds}")


def edited(text: str, share: float, seed: int = 1) -> str:
    """A text with a share of its lines cut, added to or changed, a third each, and one word renamed throughout."""
    rng, out = random.Random(seed), []
    for line in text.replace("chunk", "piece").splitlines(keepends=True):
        roll = rng.random() / share
        if roll < 1 / 3:
            continue
        if roll < 2 / 3:
            line += f"    # note {rng.randrange(100)}: {rng.choice(['checked', 'see above', 'units are bytes'])}\n"
        elif roll < 1:
            words = line.split(" ")
            words[rng.randrange(len(words))] += rng.choice(["_new", "2", "x"])
            line = " ".join(words)
        out.append(line)
    return "".join(out)


def edit(args) -> None:
    from headstart.models.demo import demo_model
    from headstart.models.gguf import GGUFFile
    from headstart.runtime.tokenizer import continuation

    tokenizer = GGUFFile(demo_model()).tokenizer()
    old = "".join(path.read_text() for path in args.files)
    ids = tuple(continuation(tokenizer, old))
    print(f"{old.count(chr(10))} lines, {len(ids)} tokens; tokens per pass with the old text as prediction (k=16) and with suffix (k=24)")
    for share in (0.02, 0.05, 0.1, 0.2, 0.4):
        new = continuation(tokenizer, edited(old, share))
        p, _, _ = replay(PredictionDrafter(), 16, [1], new, ids)
        members = [Member("prediction", PredictionDrafter(), 16), Member("suffix", SuffixDrafter(4.0, 0.1), 24)]
        both, _, _ = replay(HybridDrafter(members), 24, [1, *ids], new, ids)
        s, _, _ = replay(SuffixDrafter(4.0, 0.1), 24, [1, *ids], new)
        print(f"  {100 * share:2.0f} % of lines edited: prediction {len(new) / p:5.2f}, with suffix {len(new) / both:5.2f},"
              f" suffix alone {len(new) / s:5.2f}")  # fmt: skip
    if args.run:
        run_edit(args.length)


def run_edit(tokens: int) -> None:
    """The real engine: what the demo model says, asked again with that answer, slightly edited, as prediction."""
    from headstart import LLM
    from headstart.models.demo import demo_model

    llm = LLM(str(demo_model()), dtype="float32", max_model_len=2048, kv_cache_memory="512MiB", enable_prefix_caching=False)
    chat = [{"role": "user", "content": "Write a short guide to keeping bees, with ten numbered steps."}]
    params = SamplingParams(temperature=0, max_tokens=tokens)
    llm.chat(chat, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    plain = llm.chat(chat, params, use_tqdm=False)[0]
    predicted = SamplingParams(temperature=0, max_tokens=tokens, prediction=edited(plain.outputs[0].text, 0.05))
    fast = llm.chat(chat, predicted, use_tqdm=False)[0]
    tokens = len(plain.outputs[0].token_ids)
    seconds = [o.metrics.finished_time - o.metrics.first_token_time for o in (plain, fast)]
    print(f"engine: {tokens} tokens in {fast.metrics.num_passes} passes ({tokens / fast.metrics.num_passes:.2f} per pass), "
          f"{fast.metrics.accepted_prediction_tokens} of the prediction accepted, {fast.metrics.rejected_prediction_tokens} rejected, "
          f"{seconds[0] / seconds[1]:.2f} times plain, identical: {fast.outputs[0].token_ids == plain.outputs[0].token_ids}")  # fmt: skip


def zipf(count: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Ids that repeat as words do: a tenth of the text consists of copies of earlier pieces."""
    rng = np.random.default_rng(seed)
    ids = (rng.zipf(1.3, count) - 1) % vocab
    for _ in range(count // 1000):
        a, b = rng.integers(0, count - 100, 2)
        ids[a : a + 100] = ids[b : b + 100]
    return ids


def corpus(args) -> None:
    from headstart.lookup.corpus import Corpus
    from headstart.lookup.corpus_build import create, extend

    ids, vocab = zipf(args.tokens, 49152), 49152
    documents = [d.tolist() for d in np.array_split(ids, max(1, args.tokens // 10_000))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        start = time.perf_counter()
        create(path, "none", "", vocab, documents)
        built = time.perf_counter() - start
        size = sum(p.stat().st_size for p in path.iterdir())
        start = time.perf_counter()
        index = Corpus(path)
        opened = time.perf_counter() - start
        print(f"{index.manifest.tokens:,} tokens: built in {built:.1f} s, {size / 2**20:.0f} MiB, opened in {1000 * opened:.1f} ms")
        look_up("one segment", index, ids)
        start = time.perf_counter()
        extend(path, documents[: max(1, len(documents) // 100)])
        print(f"one per cent added in {time.perf_counter() - start:.2f} s")
        look_up("two segments", Corpus(path), ids)


def look_up(name: str, index, ids: np.ndarray) -> None:
    rng, times = random.Random(1), []
    for _ in range(2000):
        at = rng.randrange(len(ids) - 100)
        context = ids[at : at + 16].tolist()
        context[0 : rng.randrange(16)] = []
        start = time.process_time()
        match = index.find(context, 16)
        index.draft(match, 24, 0.1)
        times.append(1e6 * (time.process_time() - start))
    times.sort()
    most = times[int(0.99 * len(times))]
    print(f"  look-up with up to 24 drafts, {name}: processor time median {statistics.median(times):.0f} us, 99 % below {most:.0f} us")


def context(args) -> None:
    prompt = zipf(args.tokens, 49152).tolist()
    for title, text in (("text", prompt), ("one token repeated", [7] * args.tokens)):
        seq = Sequence(0, "0", 0, SamplingParams(), list(text), len(text), 0)
        start = time.process_time()
        SuffixAutomaton().extend(text)
        built = time.process_time() - start
        times, drafter = [], SuffixDrafter(4.0, 0.1)
        while not drafter.automata or drafter.automata[0].size < len(text):
            start = time.process_time()
            drafter.propose([Chunk(seq, 1, 24)])
            drafter.observe([Chunk(seq, 1, 24)])
            times.append(1000 * (time.process_time() - start))
        catching, times = times, []
        for _ in range(500):
            seq.tokens.append(text[len(times)])
            start = time.process_time()
            drafter.propose([Chunk(seq, 1, 24)])
            drafter.observe([Chunk(seq, 1, 24)])
            times.append(1000 * (time.process_time() - start))
        tracemalloc.start()
        own = SuffixAutomaton()
        own.extend(text)
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        print(f"{title}, {len(text)} tokens: {1e6 * built / len(text):.1f} us and {memory / len(text):.0f} bytes a token; "
              f"steps that catch up: {len(catching)}, median {statistics.median(catching):.1f} ms, at most {max(catching):.1f} ms; "
              f"steps after: median {statistics.median(times):.3f} ms, at most {max(times):.2f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    p = parts.add_parser("questions")
    p.set_defaults(run_part=questions)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "headstart-answers.jsonl")
    p.add_argument("--questions", type=int, default=60)
    p.add_argument("--length", type=int, default=128)
    p = parts.add_parser("edit")
    p.set_defaults(run_part=edit)
    p.add_argument("--files", type=Path, nargs="+", default=OLD_FILES)
    p.add_argument("--run", action="store_true")
    p.add_argument("--length", type=int, default=400)
    p = parts.add_parser("corpus")
    p.set_defaults(run_part=corpus)
    p.add_argument("--tokens", type=int, default=10_000_000)
    p = parts.add_parser("context")
    p.set_defaults(run_part=context)
    p.add_argument("--tokens", type=int, default=50_000)
    args = parser.parse_args()
    args.run_part(args)


if __name__ == "__main__":
    main()
