"""What a request gives back, with vLLM's field names, and the speculative statistics of one completion.

Statistics are counted after the cut at a stop: accepted never exceeds produced, and drafts behind the cut, which
nobody judged, count neither as drafted nor as accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headstart.core.errors import HeadstartError


class RequestError(HeadstartError):
    """A request ended with an error of its own (non-finite logits, for example); the others go on."""


@dataclass
class DrafterStats:
    """What one drafter did: steps that it served, drafts, and those of them that stand."""

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0

    def add(self, steps: int, drafted: int, accepted: int) -> None:
        self.num_spec_steps += steps
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += accepted


@dataclass
class SpeculativeStats:
    """Counts of the steps that had drafts. Names follow vLLM's served `metrics.speculative_decoding` object."""

    num_spec_tokens: int = 0  # the configured k
    per_step_drafted: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)
    drafters: dict[str, DrafterStats] = field(default_factory=dict)  # by name

    @classmethod
    def total(cls, several: Iterable[SpeculativeStats]) -> SpeculativeStats:
        """The counts of several requests together."""
        out = cls()
        for s in several:
            out.num_spec_tokens = max(out.num_spec_tokens, s.num_spec_tokens)
            out.include(s)
        return out

    def include(self, other: SpeculativeStats) -> None:
        """Add the steps of another."""
        self.per_step_drafted += other.per_step_drafted
        self.per_step_accepted += other.per_step_accepted
        for name, each in other.drafters.items():
            self.drafters.setdefault(name, DrafterStats()).add(each.num_spec_steps, each.num_draft_tokens, each.num_accepted_draft_tokens)

    def add(self, drafted: int, accepted: int, drafter: str = "drafter") -> None:
        """Record one step with drafts of `drafter`; one without drafts leaves no trace."""
        if drafted:
            self.per_step_drafted.append(drafted)
            self.per_step_accepted.append(accepted)
            self.drafters.setdefault(drafter, DrafterStats()).add(1, drafted, accepted)

    @property
    def num_spec_steps(self) -> int:
        return len(self.per_step_drafted)

    @property
    def num_draft_tokens(self) -> int:
        return sum(self.per_step_drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        return sum(self.per_step_accepted)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / steps: tokens per pass over the steps that had drafts, in 1..k+1."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """accepted / drafted. This is not alpha: it falls with k even when alpha does not."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_histogram(self) -> list[int]:
        """Entry j: how many steps accepted exactly j drafts; num_spec_tokens + 1 entries."""
        counts = [0] * (max([self.num_spec_tokens, *self.per_step_accepted]) + 1)
        for a in self.per_step_accepted:
            counts[a] += 1
        return counts

    @property
    def acceptance_per_position(self) -> list[float]:
        """Conditional acceptance a_i: of the drafts at position i whose predecessors all stood, how many stood."""
        out = []
        for i in range(max(self.per_step_drafted, default=0)):
            judged = [a for d, a in zip(self.per_step_drafted, self.per_step_accepted, strict=True) if d > i and a >= i]
            out.append(sum(a > i for a in judged) / len(judged) if judged else 0.0)
        return out

    def as_dict(self) -> dict[str, Any]:
        """The object as vLLM serves it, plus `acceptance_per_position` and `drafters`."""
        names: tuple[str, ...] = ("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "num_spec_steps")
        names += ("num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens", "per_step_accepted", "per_step_drafted")
        own = {name: getattr(self, name) for name in (*names, "acceptance_per_position")}
        return {**own, "drafters": {name: vars(each).copy() for name, each in self.drafters.items()}}


@dataclass
class SpecDecodeMetrics:
    """vLLM's `CompletionOutput.spec_decode_metrics`."""

    num_spec_tokens: int
    histogram: list[int]
    num_draft_tokens: int
    per_step_accepted: list[int]
    per_step_drafted: list[int]


@dataclass(frozen=True)
class Logprob:
    """vLLM's entry of `logprobs`: natural logarithm, rank from 1 (the likeliest), and the token's own text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class RequestMetrics:
    """Times in seconds on a monotonic clock, and what the request cost."""

    arrival_time: float = 0.0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_passes: int = 0  # target passes that yielded tokens for this request
    num_preemptions: int = 0
    seed: int = 0  # the seed that was used, given or drawn
    accepted_prediction_tokens: int | None = None  # drafts from the prediction that stand in the outputs; None: there was no prediction
    rejected_prediction_tokens: int | None = None  # and those that the target refused
    speculative_decoding: SpeculativeStats = field(default_factory=SpeculativeStats)

    def count_prediction(self, accepted: int, rejected: int) -> None:
        """Record one step whose drafts came from the prediction, of one completion."""
        self.accepted_prediction_tokens = (self.accepted_prediction_tokens or 0) + accepted
        self.rejected_prediction_tokens = (self.rejected_prediction_tokens or 0) + rejected


@dataclass(frozen=True)
class RejectedDraft:
    """A draft that does not stand. `p` and `q` as in TokenTrace; p is None behind the first one, which nobody judged."""

    token_id: int
    text: str | None
    p: float | None
    q: float | None


@dataclass(frozen=True)
class TokenTrace:
    """How one emitted token was judged.

    p: its probability under the law of the target at its place, after every option (of a greedy request: before the
    argmax is taken). q: that under the law it was drafted from; None where none was reported, so that it was judged as a point
    mass, and where the token is the target's own. rejected: the drafts in whose place a recovered token stands.
    """

    p: float
    q: float | None = None
    rejected: tuple[RejectedDraft, ...] = ()


@dataclass
class CompletionOutput:
    """One completion. `text` is always the concatenation of `token_texts`.

    `logprobs` has one dictionary per token, id -> Logprob: the token itself, then the likeliest ones; None unless asked
    for. `origins` says where each token came from: "draft", "recovered" (after a rejection), "bonus" (after every draft
    stood) or "target" (a step without drafts); `drafters` whose draft it is, None for those that are not drafts. `traces` has one
    entry per token, None unless asked for. `token_texts`, `origins`, `drafters` and `traces` are ours; the rest is vLLM's.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    spec_decode_metrics: SpecDecodeMetrics | None = None
    token_texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    drafters: list[str | None] = field(default_factory=list)
    traces: list[TokenTrace] | None = None


@dataclass
class RequestOutput:
    """A request: its prompt and its completions so far. `error` is set when the request failed on its own.

    `prompt_logprobs` has one entry per prompt token, None for the first; None unless asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    lora_request: Any = None
    num_cached_tokens: int = 0
    error: str | None = None
