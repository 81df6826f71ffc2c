"""Several drafters at once: every sequence is served, step by step, by the one whose drafts promise most for what they cost.

Lookups are all made before the choice, since they cost next to nothing; models draft once they are chosen. The choice knows
the past and how much was found: it looks at no token that a model drew, so it may stand beside any law (core/pace.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from headstart import draft
from headstart.core.pace import Offer, Pace
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Proposal, Sequence
from headstart.draft.base import DraftContext, Drafter
from headstart.draft.guard import Guard
from headstart.runtime.runner import Runner


@dataclass(frozen=True)
class Member:
    """One of several drafters: what it is called, and its drafts per step."""

    name: str
    drafter: Drafter
    most: int


@dataclass(frozen=True)
class _Plan:
    """Who drafts for a text of `length` tokens, how much, and what was found if that is a lookup."""

    length: int
    k: int = 0
    member: Member | None = None
    found: Proposal | None = None


class HybridDrafter(Drafter):
    """Invariant: a plan is used for the text it was made for, and only once."""

    def __init__(self, members: Seq[Member], pace: Pace | None = None) -> None:
        """pace: chooses lengths too; None: always as many as there are, and only whose is chosen."""
        self.members, self.adaptive, self.pace = list(members), pace is not None, pace or Pace()
        self.kv_bytes_per_token = sum(m.drafter.kv_bytes_per_token for m in members)
        self.hidden_layers = tuple(dict.fromkeys(i for m in members for i in m.drafter.hidden_layers))
        self.free = all(m.drafter.free for m in members)
        self.models = {m.name for m in members if not m.drafter.free}
        self.asked: dict[int, int] = {}  # sequence -> drafts that a model was asked for in this step
        self.plans: dict[int, _Plan] = {}

    def attach(self, target: Runner) -> None:
        for member in self.members:
            member.drafter.attach(target)
            inner = member.drafter.drafter if isinstance(member.drafter, Guard) else member.drafter
            inner.pays = partial(self._pays, member.name) if self.adaptive else None

    def _pays(self, name: str, seq: Sequence, odds: Seq[float]) -> bool:
        return self.pace.goes_on(seq.id, name, odds)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        for member in self.members:
            member.drafter.allocate(num_blocks, block_size)

    def length(self, seq: Sequence, most: int) -> int:
        """How many drafts a sequence should get in its next step, 0..most; whose is kept for `propose`."""
        self.plans[seq.id] = plan = self._plan(seq, most, self.adaptive)
        return plan.k

    def _plan(self, seq: Sequence, most: int, adaptive: bool) -> _Plan:
        length, own = len(seq.tokens), seq.params.num_speculative_tokens
        looks = not adaptive or self.pace.looks(seq.id, length)
        serving: list[tuple[Member, Proposal | None]] = []
        offers: list[Offer] = []
        for member in self.members:
            limit = min(most, member.most if own is None else own)
            if limit == 0 or not self._may_serve(member, seq):
                continue
            found = None
            if member.drafter.free:
                if not looks:
                    continue
                found = member.drafter.propose([Chunk(seq, 1, limit)])[0]
                if not found.tokens:
                    continue
                limit = len(found.tokens)
            serving.append((member, found))
            offers.append(Offer(member.name, limit, found is not None, member.drafter.prior, member.drafter.asks))
        which, k = self.pace.choose(seq.id, offers, adaptive)
        for offer, (_, found) in zip(offers, serving, strict=True):
            if found is not None:
                self.pace.watch(seq.id, offer, length, found.tokens)
        return _Plan(length, k, *serving[which]) if k else _Plan(length)

    @staticmethod
    def _may_serve(member: Member, seq: Sequence) -> bool:
        """Whether a sequence may have drafts of this one: a request may name its drafter, and a prediction that it brings is its own."""
        return (seq.params.drafter in (None, member.name) or member.name == "prediction") and member.drafter.serves(seq)

    def propose(self, chunks: Seq[Chunk]) -> list[Proposal]:
        plans = [self._planned(c) for c in chunks]
        proposals = [self._cut(p, c.k) for p, c in zip(plans, chunks, strict=True)]
        for member in self.members:
            asked = [i for i, p in enumerate(plans) if p.member is member and p.found is None]
            if not asked:
                continue
            behind = any(member.drafter.behind(chunks[i].seq) > member.most + 1 for i in asked)  # on more than its last drafts
            start = time.perf_counter()
            drawn = member.drafter.propose([replace(chunks[i], k=min(chunks[i].k, plans[i].k)) for i in asked])
            self.pace.drafting_took(member.name, max(len(p.tokens) for p in drawn), time.perf_counter() - start, behind)
            for i, proposal in zip(asked, drawn, strict=True):
                proposals[i] = replace(proposal, source=member.name)
                self.asked[chunks[i].seq.id] = min(chunks[i].k, plans[i].k)
        return proposals

    def _planned(self, chunk: Chunk) -> _Plan:
        """What was planned for this text; else a plan within the chunk's k, which somebody else has settled then."""
        plan = self.plans.pop(chunk.seq.id, None)
        if plan is not None and plan.length == len(chunk.seq.tokens):
            return plan
        return self._plan(chunk.seq, chunk.k, adaptive=False) if chunk.k else _Plan(len(chunk.seq.tokens))

    @staticmethod
    def _cut(plan: _Plan, limit: int) -> Proposal:
        if plan.found is None or plan.member is None:
            return Proposal()
        count = min(plan.k, limit)
        return replace(
            plan.found,
            tokens=plan.found.tokens[:count],
            probs=None if plan.found.probs is None else plan.found.probs[:count],
            source=plan.member.name,
        )

    def judged(self, seq: Sequence, proposal: Proposal, drafted: int, accepted: int) -> None:
        """The target's verdict on the first `drafted` of a proposal. What was found is compared with the text anyway."""
        if proposal.source in self.models:
            stopped = drafted == len(proposal.tokens) < self.asked.pop(seq.id, 0)
            self.pace.observe(seq.id, proposal.source, drafted, accepted, proposal.odds, stopped)

    def see(self, chunks: Seq[Chunk], states: Seq[Tensor]) -> None:
        for member in self.members:
            if wanted := member.drafter.hidden_layers:
                places = [self.hidden_layers.index(i) for i in wanted]
                layers = [s.view(len(s), len(self.hidden_layers), -1) for s in states]
                member.drafter.see(chunks, [s[:, places].flatten(1) for s in layers])

    def observe(self, chunks: Seq[Chunk]) -> None:
        for member in self.members:
            member.drafter.observe(chunks)
        for chunk in chunks:
            self.pace.compare(chunk.seq.id, chunk.seq.tokens)

    def forget(self, seq: Sequence) -> None:
        self.plans.pop(seq.id, None)
        self.asked.pop(seq.id, None)
        for member in self.members:
            member.drafter.forget(seq)
        if seq.finished:
            self.pace.forget(seq.id)


def build(spec: SpeculativeConfig, context: DraftContext) -> Drafter:
    members = []
    for name, each in zip(spec.names, spec.drafters or (), strict=True):
        assert isinstance(each, SpeculativeConfig) and each.num_speculative_tokens is not None  # settled by SpeculativeConfig
        if each.method != "prediction":  # which is there in any case
            members.append(Member(name, draft.build(each, context), each.num_speculative_tokens))
    return HybridDrafter(members)
