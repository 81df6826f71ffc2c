"""Load of every kind on a real server for some minutes: streams, aborts, bad requests, preemption. Then: nothing leaked, memory
flat, and every answer that came whole is the one the same request gets alone, without drafts.

    python benchmarks/soak.py --minutes 5                      # a tiny model, so that the server is what is tested
    python benchmarks/soak.py --minutes 5 --model M --draft D

Exit code 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headstart.api import LLM
from headstart.server.run import Server, listen
from headstart.server.service import Service
from headstart.server.settings import Settings

WORDS = ["the", "cat", "sat", "on", "mat", "def", "return", "ing", "harbour", "ship", "list"]
BAD: list[dict[str, Any]] = [
    {"n": 10**9}, {"temperature": -1}, {"max_tokens": 10**9}, {"prompt": [-1]}, {"prompt": ""}, {"stop": ["x"] * 99}, {"model": "another"},
    {"structured_outputs": {"regex": "("}}, {"logit_bias": {"x": 1}}, {"logprobs": 10**6}, {"verify": "maybe"}, {"prompt": "cat " * 20_000},
]  # fmt: skip


def requests(count: int, longest: int) -> list[dict[str, Any]]:
    """Requests whose answer is determined: greedy, or sampled by `match` with a seed."""
    rng = random.Random(1)
    out = []
    for i in range(count):
        prompt = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 40))) + " the cat sat" * rng.randint(0, 4)
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": rng.randint(1, longest),
            "ignore_eos": i % 3 == 0,
            "verify": "match",
            "seed": i,
        }
        body["temperature"] = rng.choice([0, 0, 0.7, 1.0])
        body |= rng.choice(
            [{}, {}, {"n": 2}, {"frequency_penalty": 0.5}, {"top_p": 0.8}, {"stop": ["e"]}, {"logprobs": 2}, {"logit_bias": {"66": 3}},
             {"structured_outputs": {"regex": "[a-f]{1,40}"}}, {"repetition_penalty": 1.2}, {"echo": True}]
        )  # fmt: skip
        if "structured_outputs" in body:
            body["ignore_eos"] = False  # the grammar decides where the text ends
        out.append(body)
    return out


class Soak:
    """The load. `wrong` holds what should not have happened."""

    def __init__(self, url: str, bodies: list[dict[str, Any]]) -> None:
        self.url, self.bodies = url, bodies
        self.expected: list[list[str]] = []
        self.done: Counter[str] = Counter()
        self.drafted = self.accepted = 0
        self.wrong: list[str] = []

    async def solo(self) -> None:
        """Every request alone and without drafts: what it must give under load."""
        async with httpx.AsyncClient(base_url=self.url, timeout=600) as client:
            for body in self.bodies:
                answer = await client.post("/v1/completions", json={**body, "num_speculative_tokens": 0})
                self.expected.append([c["text"] for c in answer.raise_for_status().json()["choices"]])

    async def load(self, seconds: float, workers: int) -> None:
        """Run the mix."""
        end = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=600, limits=limits) as client:
            await asyncio.gather(*(self._worker(client, random.Random(i), end) for i in range(workers)))

    async def _worker(self, client: httpx.AsyncClient, rng: random.Random, end: float) -> None:
        kinds = {"whole": 8, "stream": 8, "leave a stream": 5, "leave": 3, "bad": 4, "look": 2}
        while time.monotonic() < end:
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            which = rng.randrange(len(self.bodies))
            body = {**self.bodies[which], "num_speculative_tokens": rng.choice([None, 0, 1, 2, 3, 4])}
            try:
                await getattr(self, "_" + kind.replace(" ", "_"))(client, rng, which, body)
                self.done[kind] += 1
            except httpx.HTTPStatusError as e:
                if e.response.status_code == 429:
                    self.done["429"] += 1
                    await asyncio.sleep(0.2)
                else:
                    self.wrong.append(f"{kind}: {e.response.status_code} {e.response.text[:200]}")
            except httpx.HTTPError as e:
                self.wrong.append(f"{kind}: {type(e).__name__} {e}")

    def _compare(self, which: int, texts: list[str], usage: dict[str, Any]) -> None:
        details = usage["completion_tokens_details"]
        self.drafted += details["draft_tokens"]
        self.accepted += details["accepted_draft_tokens"]
        if texts != self.expected[which]:
            self.wrong.append(f"request {which} differs from its solo run: {texts!r:.200} instead of {self.expected[which]!r:.200}")

    async def _whole(self, client: httpx.AsyncClient, rng: random.Random, which: int, body: dict[str, Any]) -> None:
        answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
        self._compare(which, [c["text"] for c in answer["choices"]], answer["usage"])

    async def _stream(self, client: httpx.AsyncClient, rng: random.Random, which: int, body: dict[str, Any], leave: bool = False) -> None:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        texts, usage, ended = [""] * body.get("n", 1), None, False
        until = rng.randint(1, 15) if leave else None
        async with client.stream("POST", "/v1/completions", json=asked) as response:
            if response.status_code != 200:
                await response.aread()
                response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                ended = line == "data: [DONE]"
                chunk = {"choices": []} if ended else json.loads(line[6:])
                if "error" in chunk:
                    self.wrong.append(f"request {which}: {chunk['error']['message']}")
                    return
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
                usage = chunk.get("usage") or usage
                if until is not None and (until := until - 1) <= 0:
                    return
        if not ended or usage is None:
            self.wrong.append(f"request {which}: its stream broke off")
        elif not leave:
            self._compare(which, texts, usage)

    async def _leave_a_stream(self, client: httpx.AsyncClient, rng: random.Random, which: int, body: dict[str, Any]) -> None:
        await self._stream(client, rng, which, body, leave=True)

    async def _leave(self, client: httpx.AsyncClient, rng: random.Random, which: int, body: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/completions", json=body, timeout=rng.uniform(0.001, 0.1))

    async def _bad(self, client: httpx.AsyncClient, rng: random.Random, which: int, body: dict[str, Any]) -> None:
        answer = await client.post("/v1/completions", json={**body, **rng.choice(BAD)})
        if answer.status_code not in (400, 404, 429):
            self.wrong.append(f"a bad request got {answer.status_code}: {answer.text[:200]}")

    async def _look(self, client: httpx.AsyncClient, rng: random.Random, which: int, body: dict[str, Any]) -> None:
        for route in ("/health", "/metrics", "/v1/models"):
            (await client.get(route)).raise_for_status()


def resident() -> float:
    """Resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    """Run, report, and say by the exit code whether all was well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--model", help="default: a tiny random one")
    parser.add_argument("--draft", default="ngram", help="a method, or a draft model")
    parser.add_argument("--workers", type=int, default=24)
    parser.add_argument("--longest", type=int, default=80, help="tokens of the longest answer")
    parser.add_argument("--kv-cache-memory", default=None, help="default for the tiny model: so little that requests are preempted")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"max_num_seqs": 12, "kv_cache_memory": arguments.kv_cache_memory or "1GiB"}
        if arguments.model is None:
            from tests.server.conftest import write_model

            arguments.model = str(write_model(Path(folder), max_len=512))
            options |= {
                "dtype": "float64",
                "block_size": 8,
                "kv_cache_memory": arguments.kv_cache_memory or 400_000,
                "max_model_len": 512,
            }
        method = arguments.draft in ("ngram", "suffix", "prediction")
        spec: dict[str, Any] = {"method": arguments.draft} if method else {"method": "draft_model", "model": arguments.draft}
        spec["adaptive"] = False  # what does not pay is what is to be tested
        settings = Settings(port=0, max_queue=40, log_interval=1e6)
        sock = listen(settings)
        service = Service(settings)
        server = Server(service, lambda: LLM(arguments.model, speculative_config=spec, **options), lambda url: None)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True)
        thread.start()
        while service.state == "loading" and server.failure is None:
            time.sleep(0.1)
        if server.failure is not None:
            raise server.failure
        soak = Soak(f"http://127.0.0.1:{sock.getsockname()[1]}", requests(60, arguments.longest))
        asyncio.run(soak.solo())
        asyncio.run(soak.load(min(20.0, 20 * arguments.minutes), arguments.workers))  # caches fill, pools grow
        gc.collect()
        before = resident()
        asyncio.run(soak.load(60 * arguments.minutes, arguments.workers))
        if not service.loop.wait_idle(60):
            soak.wrong.append("requests are left")
        gc.collect()
        after = resident()
        report(soak, service, before, after)
        server.should_exit = True
        thread.join(30)
    return 1 if soak.wrong else 0


def report(soak: Soak, service: Service, before: float, after: float) -> None:
    """Check what must hold in the end, and print the figures."""
    engine = service.loop.engine
    try:
        engine.pool.check([])
    except AssertionError as e:
        soak.wrong.append(f"blocks leaked: {e}")
    for name, left in (("requests", engine.requests), ("sequences", engine.owner), ("tickets", service.loop.tickets)):
        if left:
            soak.wrong.append(f"{len(left)} {name} are left")
    if service.loop.held:
        soak.wrong.append(f"{service.loop.held} reservations are left")
    if after - before > 24:
        soak.wrong.append(f"memory grew by {after - before:.0f} MiB")
    text = service.metrics.render().decode()
    preempted = next(float(line.split()[-1]) for line in text.splitlines() if "num_preemptions_total{" in line)
    if not soak.accepted or soak.accepted == soak.drafted:
        soak.wrong.append(f"nothing was tested: {soak.accepted} of {soak.drafted} drafts accepted")
    print("requests:", ", ".join(f"{count} {kind}" for kind, count in sorted(soak.done.items())))
    print(f"drafts: {soak.accepted} of {soak.drafted} accepted; preemptions: {preempted:.0f}; passes: {service.loop.steps}")
    print(f"blocks: {engine.pool.available} of {engine.pool.num_blocks} free at the end; memory: {before:.0f} -> {after:.0f} MiB")
    for line in soak.wrong[:20]:
        print("WRONG:", line)
    print("all answers equal to their solo runs, nothing leaked" if not soak.wrong else f"{len(soak.wrong)} things were wrong")


if __name__ == "__main__":
    sys.exit(main())
