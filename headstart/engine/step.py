"""Engine: requests in, one kind of step, outputs out. The only generate loop there is.

    chunks   = scheduler.plan()          who runs, how many tokens each, blocks reserved
    proposal = drafter.propose(chunks)   up to k drafts per sequence, and the law they were drawn from
    logits   = target.forward(...)       ONE pass: prefill, plain decoding and verification are the same pass
    verdict  = verify(logits, proposal)  how many drafts stand, and the token after them
    commit                               append, stop, roll back, give slots back

Plain decoding is k = 0; prefill is a chunk that samples nothing. One thread may step at a time.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

from headstart.core import rand
from headstart.core.blocks import BlockPool
from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from headstart.core.scheduler import Scheduler
from headstart.core.types import Chunk, Proposal, Sequence, Verdict
from headstart.draft.base import Drafter
from headstart.engine.clock import StepClock
from headstart.engine.request import Completion, Request
from headstart.ops.verify import NonFiniteLogits, verify
from headstart.runtime.runner import Feed, Runner

log = logging.getLogger("headstart")


class Engine:
    """Invariant between steps: every sequence holds committed tokens only, and its blocks cover just those."""

    def __init__(
        self,
        target: Runner,
        drafter: Drafter,
        pool: BlockPool,
        scheduler: Scheduler,
        *,
        tokenizer: Any = None,
        eos_ids: Seq[int] = (),
        drafts: int = 0,
        rule: str = "rejection",
        seed: int | None = 0,
    ) -> None:
        self.target, self.drafter, self.pool, self.scheduler = target, drafter, pool, scheduler
        self.tokenizer, self.eos_ids, self.drafts, self.rule, self.seed = tokenizer, tuple(eos_ids), drafts, rule, seed
        self.requests: dict[str, Request] = {}
        self.owner: dict[int, tuple[Request, Completion]] = {}  # sequence id -> whose it is
        self.sequences = 0  # ever made: ids, and seeds of requests that bring none
        self.clock = StepClock()
        self.lock = threading.RLock()

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request_id: str, prompt: str | None, ids: list[int], params: SamplingParams) -> Request:
        """Queue a request. Raises ConfigError when it cannot be served as it is."""
        with self.lock:
            self._check(request_id, ids, params)
            k = self._draft_count(params)
            seed = params.seed
            if seed is None:
                seed = secrets.randbits(64) if self.seed is None else rand.child_seed(self.seed, self.sequences)
            completions = []
            for i in range(params.n):
                own = seed if params.n == 1 else rand.child_seed(seed, i)
                seq = Sequence(self.sequences, request_id, i, params, list(ids), len(ids), own)
                seq.rule, seq.eos_ids, seq.max_len = params.verify or self.rule, self.eos_ids, self.target.max_len
                self.sequences += 1
                completions.append(Completion(seq, self.tokenizer, k))
                self.scheduler.add(seq)
            request = Request(request_id, prompt, list(ids), params, completions)
            request.metrics.seed = seed
            self.requests[request_id] = request
            self.owner.update({c.seq.id: (request, c) for c in completions})
            return request

    def _check(self, request_id: str, ids: list[int], params: SamplingParams) -> None:
        vocab, limit = self.target.vocab, self.target.max_len
        if request_id in self.requests:
            raise ConfigError(f"request_id={request_id!r} is in use: choose another")
        if not ids:
            raise ConfigError("the prompt is empty: give at least one token")
        if len(ids) >= limit:
            raise ConfigError(
                f"the prompt has {len(ids)} tokens, the context {limit} with room for at least one new: shorten it or raise max_model_len"
            )
        bad = next((t for t in ids if not isinstance(t, int) or isinstance(t, bool) or not 0 <= t < vocab), None)
        if bad is not None:
            raise ConfigError(f"prompt token id {bad!r} is not an id of the vocabulary (0..{vocab - 1})")
        if params.stop and self.tokenizer is None:
            raise ConfigError("stop strings need a tokenizer: use stop_token_ids")
        if self.drafts == 0 and params.num_speculative_tokens:
            raise ConfigError(
                f"num_speculative_tokens={params.num_speculative_tokens} but nothing drafts: "
                "give LLM a speculative_config, such as {'method': 'ngram'}"
            )

    def _draft_count(self, params: SamplingParams) -> int:
        return self.drafts if params.num_speculative_tokens is None else params.num_speculative_tokens

    def abort(self, request_id: str) -> Request | None:
        """End a request now; its blocks go back at once. Unknown ids are ignored: it may just have finished."""
        with self.lock:
            request = self.requests.get(request_id)
            if request is not None:
                for c in request.completions:
                    if not c.seq.finished:
                        c.seq.finish_reason = "abort"
                        self._retire(c.seq)
            return request

    def use(self, drafter: Drafter, drafts: int, rule: str) -> None:
        """Draft another way from the next request on; the drafter is allocated for this pool. Raises ConfigError amid requests."""
        with self.lock:
            if self.has_work:  # a drafter knows the sequences it has seen, another one does not
                raise ConfigError("the drafter can be changed between requests only: finish or abort those that run")
            self.drafter, self.drafts, self.rule = drafter, drafts, rule

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def draft_length(self, seq: Sequence) -> int:
        """How many drafts a sequence would like next. May depend on anything but the tokens that would be drafted."""
        return self._draft_count(seq.params)

    # -- one step ------------------------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """Run one pass and commit it. Returns the requests that got tokens or ended, in order of arrival."""
        with self.lock:
            self.clock.start()
            chunks, preempted = self.scheduler.plan(self.draft_length)
            for seq in preempted:
                self.drafter.forget(seq)
            if not chunks:
                return []
            self._mark_scheduled(chunks)
            self.clock.lap("other")
            proposals = self._propose(chunks)
            self.clock.lap("draft")
            self.clock.drafts += sum(len(p.tokens) for p in proposals)
            feeds = [
                Feed(c.seq.tokens[c.seq.computed : c.seq.computed + c.count] + p.tokens, c.seq.computed, c.seq.table, self._rows(c, p))
                for c, p in zip(chunks, proposals, strict=True)
            ]
            logits = self.target.forward(feeds)
            self.clock.lap("target")
            touched: dict[str, Request] = {}
            for chunk, proposal, rows in zip(chunks, proposals, logits, strict=True):
                request, completion = self.owner[chunk.seq.id]
                if not chunk.samples:
                    chunk.seq.computed += chunk.count
                    self.pool.publish(chunk.seq)
                    continue
                touched[request.id] = request
                seq = chunk.seq
                try:
                    verdict = verify(rows, proposal, seq.params, seq.rule, seq.seed, len(seq.tokens))
                except NonFiniteLogits as e:
                    request.error = f"{e} at output token {len(seq.tokens) - seq.prompt_len}: the model or its dtype is at fault"
                    seq.finish_reason = "error"
                else:
                    self.clock.lap("verify")
                    self._commit(request, completion, proposal, verdict)
                    self.clock.lap("other")
            self.drafter.observe(chunks)
            for chunk in chunks:
                if chunk.seq.finished:
                    self._retire(chunk.seq)
            self.clock.lap("other")
            return list(touched.values())

    @staticmethod
    def _rows(chunk: Chunk, proposal: Proposal) -> int:
        return len(proposal.tokens) + 1 if chunk.samples else 0

    def _propose(self, chunks: list[Chunk]) -> list[Proposal]:
        """The drafter's proposals, made safe: whatever goes wrong there costs this step its drafts and nothing else."""
        if all(c.k == 0 for c in chunks):
            return [Proposal() for _ in chunks]
        try:
            proposals = self.drafter.propose(chunks)
            if len(proposals) != len(chunks):
                raise ValueError(f"{len(proposals)} proposals for {len(chunks)} chunks")
        except Exception:
            log.exception("the drafter failed; this step runs without drafts")
            return [Proposal() for _ in chunks]
        return [self._sane(c, p) for c, p in zip(chunks, proposals, strict=True)]

    def _sane(self, chunk: Chunk, proposal: Proposal) -> Proposal:
        tokens, probs = proposal.tokens[: chunk.k], proposal.probs
        if not all(isinstance(t, int) and 0 <= t < self.target.vocab for t in tokens):
            log.warning("the drafter proposed an id outside the vocabulary; this step runs without drafts")
            return Proposal()
        return Proposal(tokens, None if probs is None else probs[: len(tokens)])

    def _commit(self, request: Request, completion: Completion, proposal: Proposal, verdict: Verdict) -> None:
        """Append what stands up to the first end, roll back the rest, give its slots back."""
        seq, drafted = completion.seq, len(proposal.tokens)
        kept, ended = 0, False
        for token in proposal.tokens[: verdict.accepted]:
            ended = completion.push(token, "draft")
            kept += 1
            if ended:
                break
        if ended:
            drafted = kept  # the drafts behind the end were never judged
        else:
            completion.push(verdict.tail, "target" if not drafted else "bonus" if kept == drafted else "recovered")
        completion.stats.add(drafted, kept)
        request.metrics.num_passes += 1
        if request.metrics.first_token_time is None:
            request.metrics.first_token_time = time.monotonic()
        seq.computed = len(seq.tokens) - 1  # the rollback: what lies beyond is unreachable and will be overwritten
        self.pool.publish(seq)
        self.pool.trim(seq.table, len(seq.tokens))

    def _mark_scheduled(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            metrics = self.owner[chunk.seq.id][0].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = time.monotonic()

    def _retire(self, seq: Sequence) -> None:
        """Take an ended sequence out and give everything back."""
        self.scheduler.remove(seq)
        self.drafter.forget(seq)
        request, _ = self.owner.pop(seq.id)
        if request.finished:
            request.metrics.finished_time = time.monotonic()
            self.requests.pop(request.id, None)
