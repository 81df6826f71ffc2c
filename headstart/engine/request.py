"""A request on its way: the sequences of its n completions, their text so far, and what the user will be given."""

from __future__ import annotations

import time
from typing import Any

from headstart.core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, SpecDecodeMetrics, SpeculativeStats, TokenTrace
from headstart.core.params import SamplingParams
from headstart.core.stopping import find_stop, held_back, stop_at
from headstart.core.types import Sequence
from headstart.engine.detokenizer import Detokenizer


def _cut_end(pieces: list[str], count: int) -> None:
    """Take `count` characters off the end of a text given in pieces, in place; the number of pieces stays."""
    i = len(pieces) - 1
    while count > 0:
        cut = min(count, len(pieces[i]))
        pieces[i] = pieces[i][: len(pieces[i]) - cut]
        count -= cut
        i -= 1


class Completion:
    """One sequence and its text. Invariant: `pieces` has one string per output token; their concatenation is the text."""

    def __init__(self, seq: Sequence, tokenizer: Any, num_spec_tokens: int) -> None:
        self.seq = seq
        self.pieces: list[str] = []
        self.origins: list[str] = []
        self.drafters: list[str | None] = []
        self.stats = SpeculativeStats(num_spec_tokens)
        self.stops: tuple[str, ...] = tuple(seq.params.stop or ())
        self._tail = ""  # the end of the text, long enough for a stop string
        self._keep = max((len(s) for s in self.stops), default=0)
        self.logprobs: list[dict[int, Logprob]] = []
        self.traces: list[TokenTrace] | None = [] if seq.params.trace_drafts else None
        self.cumulative_logprob = 0.0
        speaks = tokenizer is not None and seq.params.detokenize
        self._text = Detokenizer(tokenizer, seq.tokens, seq.params.skip_special_tokens) if speaks else None

    def push(self, token: int, origin: str, drafter: str | None = None) -> bool:
        """Commit one token, a draft of `drafter`; True when it ends the sequence, at the same place with and without drafts."""
        seq = self.seq
        seq.tokens.append(token)
        self.origins.append(origin)
        self.drafters.append(drafter)
        end = stop_at(seq)
        by_id = end is not None and end[0] == "stop"
        piece = ""
        if self._text is not None and (not by_id or seq.params.include_stop_str_in_output):
            piece = self._text.push(token)
        if end is not None and self._text is not None:
            piece += self._text.flush()
        self.pieces.append(piece)
        stop = self._stop_string(piece)
        if stop is not None:
            end = ("stop", stop)
        if end is not None:
            seq.finish_reason, seq.stop_reason = end
        return end is not None

    def _stop_string(self, piece: str) -> str | None:
        if not self.stops or not piece:
            return None
        self._tail += piece
        if self.seq.produced <= self.seq.params.min_tokens:  # as in vLLM: what ends within the minimum does not count
            return None
        found = find_stop(self._tail, len(piece), self.stops)
        if found is None:
            self._tail = self._tail[-self._keep :]
            return None
        at, stop = found
        end = at + len(stop) if self.seq.params.include_stop_str_in_output else at
        _cut_end(self.pieces, len(self._tail) - end)
        return stop

    @property
    def scored(self) -> bool:
        """Whether log probabilities are kept: asked for, or needed to rank completions."""
        params = self.seq.params
        return params.logprobs is not None or params.completions > params.n

    def score(self, logprobs: list[dict[int, Logprob]]) -> None:
        """Take the log probabilities of the tokens pushed last, one dictionary each, its own token first."""
        self.cumulative_logprob += sum(next(iter(entry.values())).logprob for entry in logprobs)
        self.logprobs += logprobs

    def output(self) -> CompletionOutput:
        """What may be shown now. A possible beginning of a stop string is held back until it is decided."""
        seq, pieces = self.seq, list(self.pieces)
        if not seq.finished:
            _cut_end(pieces, held_back(self._tail, self.stops))
        s = self.stats
        metrics = SpecDecodeMetrics(
            s.num_spec_tokens, s.acceptance_histogram, s.num_draft_tokens, list(s.per_step_accepted), list(s.per_step_drafted)
        )
        return CompletionOutput(
            index=seq.index,
            text="".join(pieces),
            token_ids=seq.output,
            cumulative_logprob=self.cumulative_logprob if self.scored else None,
            logprobs=None if seq.params.logprobs is None else list(self.logprobs),
            finish_reason=seq.finish_reason,
            stop_reason=seq.stop_reason,
            spec_decode_metrics=metrics if s.num_spec_tokens else None,
            token_texts=pieces,
            origins=list(self.origins),
            drafters=list(self.drafters),
            traces=None if self.traces is None else list(self.traces),
        )


class Request:
    """All completions of one request and its times."""

    def __init__(
        self, request_id: str, prompt: str | None, prompt_ids: list[int], params: SamplingParams, completions: list[Completion]
    ) -> None:
        self.id, self.prompt, self.prompt_ids, self.params = request_id, prompt, prompt_ids, params
        self.completions = completions
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(prompt_ids)
        self.error: str | None = None
        self.metrics = RequestMetrics(arrival_time=time.monotonic())

    @property
    def finished(self) -> bool:
        return all(c.seq.finished for c in self.completions)

    def output(self) -> RequestOutput:
        """The request as the user sees it now."""
        metrics, stats = self.metrics, SpeculativeStats(max(c.stats.num_spec_tokens for c in self.completions))
        for c in self.completions:
            stats.include(c.stats)
        metrics.speculative_decoding = stats
        metrics.num_preemptions = sum(c.seq.preemptions for c in self.completions)
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=self._ranked(),
            finished=self.finished,
            metrics=metrics,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.completions[0].seq.cached,
            error=self.error,
        )

    def _ranked(self) -> list[CompletionOutput]:
        """The completions; of best_of the n likeliest, likeliest first, once all have ended."""
        params, chosen = self.params, self.completions
        if params.completions > params.n:
            if self.finished:
                chosen = sorted(chosen, key=lambda c: -c.cumulative_logprob)  # stable: of equals the earlier
            chosen = chosen[: params.n]
        outputs = [c.output() for c in chosen]
        for i, out in enumerate(outputs):
            out.index = i
        return outputs
