"""Engine: requests in, one kind of step, outputs out. The only generate loop there is.

    chunks   = scheduler.plan()          who runs, how many tokens each, blocks reserved
    proposal = drafter.propose(chunks)   up to k drafts per sequence, and the law they were drawn from
    logits   = target.forward(...)       ONE pass: prefill, plain decoding and verification are the same pass
    verdict  = verify(logits, proposal)  how many drafts stand, and the token after them
    commit                               append, stop, roll back, give slots back

Plain decoding is k = 0; prefill is a chunk that samples nothing. One thread may step at a time.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.core import rand
from headstart.core.blocks import BlockPool
from headstart.core.checks import check_prompt
from headstart.core.errors import ConfigError
from headstart.core.outputs import Logprob
from headstart.core.pace import Pace
from headstart.core.params import SamplingParams
from headstart.core.scheduler import Scheduler
from headstart.core.speculation import verify_rule
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft.base import Drafter
from headstart.draft.guard import Guard
from headstart.draft.hybrid import HybridDrafter, Member
from headstart.draft.prediction import PredictionDrafter
from headstart.engine import admission
from headstart.engine.clock import StepClock
from headstart.engine.request import Completion, Request
from headstart.engine.trace import trace
from headstart.ops.grammar import Grammar, GrammarCompiler
from headstart.ops.logprobs import Scores, log_law, score
from headstart.ops.verify import Fault, verify_batch
from headstart.runtime.runner import Feed, Runner


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
        prediction_drafts: int = 0,
        rule: str | None = None,
        pace: Pace | None = None,
        seed: int | None = 0,
        logprobs_mode: str = "raw_logprobs",
        max_logprobs: int = 20,
    ) -> None:
        self.target, self.pool, self.scheduler = target, pool, scheduler
        self.tokenizer, self.eos_ids, self.seed = tokenizer, tuple(eos_ids), seed
        self.processed_logprobs, self.max_logprobs = logprobs_mode == "processed_logprobs", max_logprobs
        self.grammars = GrammarCompiler(tokenizer, target.vocab, eos_ids)
        self.prediction_drafts = prediction_drafts
        self.requests: dict[str, Request] = {}
        self.owner: dict[int, tuple[Request, Completion]] = {}  # sequence id -> whose it is
        self.sequences = 0  # ever made: ids, and seeds of requests that bring none
        self.clock = StepClock()
        self.lock = threading.RLock()
        self.use(drafter, drafts, rule, pace)

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(
        self,
        request_id: str,
        prompt: str | None,
        ids: list[int],
        params: SamplingParams,
        *,
        salt: bytes = b"",
        grammar: Grammar | None = None,
    ) -> Request:
        """Queue a request; its prefix is shared with those of equal `salt`. Raises ConfigError when it cannot be served as it is.

        grammar: of `params.structured_outputs`, by whoever has compiled it beforehand.
        """
        with self.lock:
            if request_id in self.requests:
                raise ConfigError(f"request_id={request_id!r} is in use: choose another")
            vocab, limit = self.target.vocab, self.target.max_len
            ids = admission.truncated(ids, params, limit)
            check_prompt(ids, vocab, limit)
            admission.check_options(params, vocab, self.max_logprobs, self.tokenizer)
            admission.check_drafting(params, [m.name for m in self.drafter.members], self.drafts)
            bad_words = admission.bad_words(params, self.tokenizer)
            if params.structured_outputs is not None and grammar is None:
                grammar = self.grammars.compile(params.structured_outputs)  # type: ignore[arg-type]
            k = self._draft_count(params)
            prediction = admission.prediction(params, vocab, limit, self.tokenizer)
            seed = params.seed
            if seed is None:
                seed = secrets.randbits(64) if self.seed is None else rand.child_seed(self.seed, self.sequences)
            completions = []
            for i in range(params.completions):
                own = seed if params.completions == 1 else rand.child_seed(seed, i)
                seq = Sequence(self.sequences, request_id, i, params, list(ids), len(ids), own)
                seq.prediction = prediction
                seq.rule, seq.eos_ids, seq.max_len = verify_rule(params, self.rule), self.eos_ids, limit
                seq.bad_words, seq.grammar, seq.salt = bad_words, grammar and grammar.fork(), salt
                seq.score_prompt = params.prompt_logprobs is not None and i == 0
                self.sequences += 1
                completions.append(Completion(seq, self.tokenizer, k))
                self.scheduler.add(seq)
            request = Request(request_id, prompt, list(ids), params, completions)
            request.metrics.seed = seed
            if params.prediction is not None:
                request.metrics.accepted_prediction_tokens = request.metrics.rejected_prediction_tokens = 0
            self.requests[request_id] = request
            self.owner.update({c.seq.id: (request, c) for c in completions})
            return request

    def _draft_count(self, params: SamplingParams) -> int:
        if params.num_speculative_tokens is not None:
            return params.num_speculative_tokens
        return self.drafts if params.prediction is None else max(self.drafts, self.prediction_drafts)

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

    def close(self) -> None:
        """Abort what runs. Memory goes when the object goes."""
        for request_id in list(self.requests):
            self.abort(request_id)

    def use(self, drafter: Drafter, drafts: int, rule: str | None, pace: Pace | None = None) -> None:
        """Draft another way from the next request on; the drafter is allocated for this pool. Raises ConfigError amid requests.

        pace: chooses how many of at most `drafts` are made; None: always all of them.
        """
        with self.lock:
            if self.has_work:  # a drafter knows the sequences it has seen, another one does not
                raise ConfigError("the drafter can be changed between requests only: finish or abort those that run")
            members = [Member("prediction", PredictionDrafter(), self.prediction_drafts or drafts)]  # any request may bring one
            if isinstance(drafter, HybridDrafter):
                members += drafter.members
            elif drafts and drafter.name != "prediction":
                members.append(Member(drafter.name, drafter, drafts))
            # A guard stands before all of them, since they may be anybody's.
            self.drafter = HybridDrafter([replace(m, drafter=Guard(m.drafter, self.target.vocab)) for m in members], pace)
            self.drafter.attach(self.target)
            self.drafts, self.rule = drafts, rule

    def recover(self) -> None:
        """After a step that raised: take out what has ended, send the rest back to waiting; their KV is made anew."""
        with self.lock:
            for seq in reversed(list(self.scheduler.running)):  # the oldest last, so that it comes first again
                self.drafter.forget(seq)
                if seq.finished:
                    self._retire(seq)
                else:
                    self.scheduler.preempt(seq, [])

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def draft_length(self, seq: Sequence) -> int:
        """How many drafts a sequence would like next. May depend on anything but the tokens that would be drafted."""
        most = min(self._draft_count(seq.params), max(0, seq.remaining - 1))
        if most == 0:
            return 0
        forced = len(seq.grammar.forced(most)) if seq.grammar is not None else 0
        if forced:  # what is forced stands, and a pass of many rows is cheaper than as many passes
            return forced
        self.clock.lap("other")
        k = self.drafter.length(seq, most)
        self.clock.lap("draft")
        return k

    # -- one step ------------------------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """Run one pass and commit it. Returns the requests that got tokens or ended, in order of arrival."""
        with self.lock:
            self.clock.start()
            drafted_before = self.clock.seconds["draft"]
            chunks, preempted = self.scheduler.plan(self.draft_length)
            for seq in preempted:
                self.drafter.forget(seq)
            if not chunks:
                return []
            self._mark_scheduled(chunks)
            self.clock.lap("other")
            proposals = self._propose(chunks)
            self.clock.lap("draft")
            drafting = self.clock.seconds["draft"] - drafted_before
            self.clock.drafts += sum(len(p.tokens) for p in proposals)
            feeds = [self._feed(c, p) for c, p in zip(chunks, proposals, strict=True)]
            if self.drafter.hidden_layers:
                logits, states = self.target.forward_with_states(feeds, self.drafter.hidden_layers)
                self.drafter.see(chunks, states)
            else:
                logits = self.target.forward(feeds)
            self.clock.lap("target")
            steps = [
                (r[c.count - 1 :] if c.seq.score_prompt else r, p, c.seq)
                for c, p, r in zip(chunks, proposals, logits, strict=True)
                if c.samples
            ]
            verdicts = iter(verify_batch(steps))
            self.clock.lap("verify")
            touched: dict[str, Request] = {}
            for chunk, proposal, rows in zip(chunks, proposals, logits, strict=True):
                seq = chunk.seq
                request, completion = self.owner[seq.id]
                if seq.score_prompt:
                    self._score_prompt(request, chunk, rows[: chunk.count])
                    rows = rows[chunk.count - 1 :]
                if not chunk.samples:
                    seq.computed += chunk.count
                    self.pool.settle(seq)
                    continue
                touched[request.id] = request
                verdict = next(verdicts)
                if isinstance(verdict, Fault):
                    self._commit(request, completion, proposal, rows, verdict.accepted, None)
                    self._fail(request, seq, str(verdict))
                else:
                    self._commit(request, completion, proposal, rows, verdict.accepted, verdict.tail)
            self.drafter.observe(chunks)
            for chunk in chunks:
                if chunk.seq.finished:
                    self._retire(chunk.seq)
            self.clock.lap("other")
            if all(c.samples and c.count == 1 for c in chunks):  # a step with prefill says nothing about decoding
                fed = len(chunks) + sum(len(p.tokens) for p in proposals)
                self.drafter.pace.pass_took(fed, len(chunks), self.clock.step_seconds - drafting)
            self.drafter.pace.end_step()
            return list(touched.values())

    def _feed(self, chunk: Chunk, proposal: Proposal) -> Feed:
        seq = chunk.seq
        fed = seq.tokens[seq.computed : seq.computed + chunk.count] + proposal.tokens
        return Feed(fed, seq.computed, seq.table, self._rows(chunk, proposal), local=seq.local)

    @staticmethod
    def _rows(chunk: Chunk, proposal: Proposal) -> int:
        drafts = len(proposal.tokens)
        if chunk.seq.score_prompt:
            return chunk.count + drafts
        return drafts + 1 if chunk.samples else 0

    def _propose(self, chunks: list[Chunk]) -> list[Proposal]:
        """The drafter's proposals, and before them what a grammar forces; a step without drafts asks nobody."""
        proposals = [self._forced(c) for c in chunks]
        rest = [i for i, (c, p) in enumerate(zip(chunks, proposals, strict=True)) if c.k and not p.tokens]
        if rest:
            for i, proposal in zip(rest, self.drafter.propose([chunks[i] for i in rest]), strict=True):
                proposals[i] = self._lawful(chunks[i], proposal)
        return proposals

    @staticmethod
    def _forced(chunk: Chunk) -> Proposal:
        """What the grammar leaves no choice about is drafted without asking the drafter."""
        grammar = chunk.seq.grammar
        return Proposal(grammar.forced(chunk.k) if grammar is not None and chunk.k else [], source="grammar")

    @staticmethod
    def _lawful(chunk: Chunk, proposal: Proposal) -> Proposal:
        """No further than the grammar goes."""
        if chunk.seq.grammar is None:
            return proposal
        # A draft of a reported law is judged even when the grammar forbids it: dropping it for its value would be a bias.
        count = chunk.seq.grammar.valid(proposal.tokens) + (proposal.probs is not None)
        return replace(proposal, tokens=proposal.tokens[:count], probs=None if proposal.probs is None else proposal.probs[:count])

    def _commit(self, request: Request, completion: Completion, proposal: Proposal, rows: Tensor, accepted: int, tail: int | None) -> None:
        """Append what stands up to the first end, roll back the rest, give its slots back. `tail` None: a row had no law."""
        seq, drafted, start = completion.seq, len(proposal.tokens), len(completion.seq.tokens)
        judged = accepted + (tail is not None)  # rows that yield a token
        laws = log_law(rows[:judged], seq, proposal.tokens[: judged - 1], self.processed_logprobs) if completion.scored and judged else None
        traces = None if completion.traces is None else trace(rows, seq, proposal, accepted, tail, self._text)
        kept, ended = 0, False
        for token in proposal.tokens[:accepted]:
            ended = completion.push(token, "draft", proposal.source)
            kept += 1
            if ended:
                break
        if ended or tail is None:
            drafted = kept  # the drafts behind the end were never judged
        else:
            completion.push(tail, "target" if not drafted else "bonus" if kept == drafted else "recovered")
        new = seq.tokens[start:]
        if laws is not None:
            completion.score(self._named(score(laws[: len(new)], new, seq.params.logprobs or 0), seq.params))
        if traces is not None and completion.traces is not None:
            completion.traces += traces[: len(new)]
        if seq.grammar is not None:
            try:
                seq.grammar.commit(new)
            except ValueError as e:
                self._fail(request, seq, str(e))
        if drafted:
            completion.stats.add(drafted, kept, proposal.source)
            self.drafter.judged(seq, proposal, drafted, kept)
        if proposal.source == "prediction":
            request.metrics.count_prediction(kept, drafted - kept)
        request.metrics.num_passes += 1
        if request.metrics.first_token_time is None:
            request.metrics.first_token_time = time.monotonic()
        seq.computed = len(seq.tokens) - 1  # the rollback: what lies beyond is unreachable and will be overwritten
        self.pool.settle(seq)

    def _fail(self, request: Request, seq: Sequence, words: str) -> None:
        """End one sequence with an error; unless its text has ended anyway."""
        if not seq.finished:
            request.error = f"{words}, at output token {seq.produced}"
            seq.finish_reason = "error"

    def _score_prompt(self, request: Request, chunk: Chunk, rows: Tensor) -> None:
        """Log probabilities of the prompt tokens that these rows, one per token fed, predict."""
        seq, at = chunk.seq, chunk.seq.computed + 1
        tokens = seq.tokens[at : min(at + chunk.count, seq.prompt_len)]
        if tokens:
            assert request.prompt_logprobs is not None
            laws = log_law(rows[: len(tokens)], seq, [], False)
            scores = score(laws, tokens, request.params.prompt_logprobs or 0)
            request.prompt_logprobs[at : at + len(tokens)] = self._named(scores, seq.params)

    def _named(self, scores: list[Scores], params: SamplingParams) -> list[dict[int, Logprob]]:
        """vLLM's form, with the text of each token where there is a tokenizer and text is wanted."""
        text = self._text if params.detokenize else lambda token: None
        return [{t: Logprob(p, rank, text(t)) for t, (p, rank) in entry.items()} for entry in scores]

    def _text(self, token: int) -> str | None:
        """One token's own text; None where there is no tokenizer."""
        return None if self.tokenizer is None else str(self.tokenizer.decode([token]))

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
