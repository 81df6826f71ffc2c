"""What Prometheus and the log are told, with the names that vLLM's dashboards know behind a prefix of one's own.

Counts come from the engine thread, step by step, as differences of each completion's own statistics.
"""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headstart.engine.step import Engine

if TYPE_CHECKING:
    from headstart.engine.request import Completion, Request

log = logging.getLogger("headstart.server")

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


class Metrics:
    """One server's metrics. The engine thread writes; any thread may render."""

    def __init__(self, model: str, prefix: str, context: int) -> None:
        self.registry = CollectorRegistry()
        self.labels = {"model_name": model, "engine": "0"}
        self._prefix = prefix
        self.running = self._gauge("num_requests_running", "Sequences that run.")
        self.waiting = self._gauge("num_requests_waiting", "Sequences that wait.")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0..1.")
        self.preemptions = self._counter("num_preemptions", "Sequences sent back to waiting for want of KV blocks.")
        self.prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found there.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that began.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens emitted.")
        self.passes = self._counter("passes", "Passes of the target model.")
        self.drafts = self._counter("spec_decode_num_drafts", "Steps of sequences that had drafts.")
        self.draft_tokens = self._counter("spec_decode_num_draft_tokens", "Draft tokens that were judged.")
        self.accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Draft tokens that stood.")
        name = "spec_decode_num_accepted_tokens_per_pos"
        self.accepted_per_pos = self._counter(name, "Draft tokens that stood, by position in the draft.", "position")
        name = "spec_decode_num_draft_tokens_per_pos"
        self.drafted_per_pos = self._counter(name, "Draft tokens that were judged, by position in the draft.", "position")
        self.success = self._counter("request_success", "Requests that ended, by reason.", "finished_reason")
        self.refused = self._counter("request_refused", "Requests answered with an error status.", "status")
        self.ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self.itl = self._histogram("inter_token_latency_seconds", "Gap between two steps of a sequence, over the tokens of the later.")
        self.tpot = self._histogram("request_time_per_output_token_seconds", "Decoding time of a request over its tokens after the first.")
        self.e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the end.")
        self.queue = self._histogram("request_queue_time_seconds", "From arrival to the first pass.")
        self.request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.request_generation = self._histogram("request_generation_tokens", "Tokens emitted for a request.", _TOKENS)
        self._seen: dict[int, tuple[int, int, int, float]] = {}  # sequence -> tokens, steps, preemptions counted; time of the last
        self._begun: set[str] = set()
        self._pool = (0, 0)
        self.interval = Interval()

    # -- what the engine thread tells ------------------------------------------------------------------------------

    def stepped(self, engine: Engine, touched: list[Request]) -> None:
        """Count a step."""
        now = time.monotonic()
        self.passes.inc()
        for request in touched:
            if request.id not in self._begun:
                self._begun.add(request.id)
                self._first(request)
            for completion in request.completions:
                self._count(completion, now)
        running, waiting = len(engine.scheduler.running), len(engine.scheduler.waiting)
        self.running.set(running)
        self.waiting.set(waiting)
        pool = engine.pool
        usage = pool.usage
        self.kv_usage.set(usage)
        queries, hits = pool.queries - self._pool[0], pool.hits - self._pool[1]
        self._pool = (pool.queries, pool.hits)
        self.prefix_queries.inc(queries)
        self.prefix_hits.inc(hits)
        self.interval.step(running, waiting, usage, queries, hits)

    def finished(self, request: Request) -> None:
        """Count a request's end, and forget it."""
        output = request.output()
        m = output.metrics
        end = m.finished_time or time.monotonic()
        made = sum(len(c.token_ids) for c in output.outputs)
        for shown in output.outputs:
            self.success.labels(**self.labels, finished_reason=shown.finish_reason or "abort").inc()
        self.e2e.observe(end - m.arrival_time)
        if m.first_scheduled_time is not None:
            self.queue.observe(m.first_scheduled_time - m.arrival_time)
        if m.first_token_time is not None and made > len(output.outputs):
            self.tpot.observe((end - m.first_token_time) / (made - len(output.outputs)))
        self.request_prompt.observe(len(output.prompt_token_ids))
        self.request_generation.observe(made)
        self._begun.discard(request.id)
        for completion in request.completions:
            self._seen.pop(completion.seq.id, None)

    def idle(self) -> None:
        """Nothing runs: the gauges would else keep the last step's values."""
        for gauge in (self.running, self.waiting, self.kv_usage):
            gauge.set(0)

    def _first(self, request: Request) -> None:
        count = len(request.prompt_ids)
        self.prompt_tokens.inc(count)
        self.interval.prompt += count
        m = request.metrics
        if m.first_token_time is not None:
            self.ttft.observe(m.first_token_time - m.arrival_time)

    def _count(self, completion: Completion, now: float) -> None:
        seq, stats = completion.seq, completion.stats
        tokens, steps, preempted, last = self._seen.get(seq.id, (0, 0, 0, 0.0))
        made = seq.produced - tokens
        if made:
            self.generation_tokens.inc(made)
            self.interval.generated += made
            if last:
                self.itl.observe((now - last) / made)
            last = now
        self.preemptions.inc(seq.preemptions - preempted)
        for drafted, accepted in zip(stats.per_step_drafted[steps:], stats.per_step_accepted[steps:], strict=True):
            self._draft(drafted, accepted)
        self._seen[seq.id] = (seq.produced, len(stats.per_step_drafted), seq.preemptions, last)

    def _draft(self, drafted: int, accepted: int) -> None:
        self.drafts.inc()
        self.draft_tokens.inc(drafted)
        self.accepted_tokens.inc(accepted)
        for position in range(drafted):
            self.drafted_per_pos.labels(**self.labels, position=str(position)).inc()
            if position < accepted:
                self.accepted_per_pos.labels(**self.labels, position=str(position)).inc()
        self.interval.draft(drafted, accepted)

    # -- what readers get ------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(self._prefix + name, words, list(self.labels), registry=self.registry).labels(**self.labels)

    def _counter(self, name: str, words: str, label: str | None = None) -> Counter:
        made = Counter(self._prefix + name, words, [*self.labels, *([label] if label else [])], registry=self.registry)
        return made if label else made.labels(**self.labels)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(self._prefix + name, words, list(self.labels), registry=self.registry, buckets=buckets).labels(**self.labels)


class Interval:
    """Sums since the last log line. Written by the engine thread, read and reset by `lines`."""

    def __init__(self) -> None:
        self._reset()
        self.running = self.waiting = 0
        self.usage = 0.0

    def _reset(self) -> None:
        self.since = time.monotonic()
        self.prompt = self.generated = self.drafts = self.drafted = self.accepted = self.steps = self.queries = self.hits = 0
        self.per_position: Tally[int] = Tally()

    def step(self, running: int, waiting: int, usage: float, queries: int, hits: int) -> None:
        """One pass was run."""
        self.steps += 1
        self.running, self.waiting, self.usage = running, waiting, usage
        self.queries += queries
        self.hits += hits

    def draft(self, drafted: int, accepted: int) -> None:
        """One step of a sequence had drafts."""
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        self.per_position.update(range(accepted))

    def lines(self) -> list[str]:
        """The log lines of the time since the last call; none when nothing ran."""
        seconds = max(time.monotonic() - self.since, 1e-9)
        out = []
        if self.steps:
            hit_rate = self.hits / self.queries if self.queries else 0.0
            out.append(
                f"Avg prompt throughput: {self.prompt / seconds:.1f} tokens/s, Avg generation throughput: "
                f"{self.generated / seconds:.1f} tokens/s, Running: {self.running} reqs, Waiting: {self.waiting} reqs, "
                f"KV cache usage: {self.usage:.1%}, Prefix cache hit rate: {hit_rate:.1%}"
            )
        if self.drafts:
            rates = ", ".join(f"{self.per_position[i] / self.drafts:.3f}" for i in range(max(self.per_position, default=0) + 1))
            out.append(
                f"SpecDecoding metrics: Mean acceptance length: {1 + self.accepted / self.drafts:.2f}, "
                f"Accepted throughput: {self.accepted / seconds:.2f} tokens/s, Drafted throughput: {self.drafted / seconds:.2f} tokens/s, "
                f"Accepted: {self.accepted} tokens, Drafted: {self.drafted} tokens, Per-position acceptance rate: {rates}, "
                f"Avg Draft acceptance rate: {100 * self.accepted / self.drafted:.1f}%"
            )
        self._reset()
        return out
