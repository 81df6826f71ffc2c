"""Models and drafters for tests: exact, tiny, and merciless about KV bookkeeping.

`EchoModel`'s "KV" stores token ids, and its next-token law is a hash of the context *read back through the block table*.
Any rollback, trim, sharing or preemption bug becomes a different token. `EchoModel.law` gives the same law from a plain
list of tokens, for loops that know nothing of the engine.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from headstart.core import rand
from headstart.core.blocks import HOLE, BlockPool
from headstart.core.config import EngineConfig, SpeculativeConfig
from headstart.core.memory import Blocks
from headstart.core.params import SamplingParams
from headstart.core.types import Proposal
from headstart.draft.base import Drafter, LookupDrafter
from headstart.draft.corpus import CorpusDrafter
from headstart.draft.draft_model import ModelDrafter
from headstart.draft.head import HeadDrafter
from headstart.draft.hybrid import HybridDrafter, Member
from headstart.draft.ngram import NgramDrafter
from headstart.draft.none import NoDrafter
from headstart.draft.quantised import QuantisedDrafter
from headstart.draft.suffix import SuffixDrafter
from headstart.draft.translated import TextDrafter, TokenDrafter
from headstart.engine.build import assemble
from headstart.engine.step import Engine
from headstart.lookup.corpus import Corpus
from headstart.lookup.corpus_build import create
from headstart.ops.attention import Batch, KVCache
from headstart.ops.noise import race
from headstart.ops.sampling import law


@dataclass
class EchoModel:
    """Logits = `local` * h(last two tokens) + `whole` * h(the whole context) + `noise` * (another hash of the context).

    `sign` = -1 turns it into the adversary of the model without noise: it likes best what that one likes least.
    """

    vocab: int = 30
    seed: int = 1
    local: float = 3.0
    whole: float = 1.0
    noise: float = 0.0
    sign: float = 1.0
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kv_bytes_per_token: int = 16
    window: int | None = None
    padding: int = 0  # further vocabulary rows that no tokenizer knows, with tempting logits
    rough: float = 0.0
    passes: int = 0
    rows: int = 0
    _memo: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def new_cache(self, slots: int, local_slots: int | None = None) -> KVCache:
        counts = [slots] if self.window is None else [slots, slots if local_slots is None else local_slots]
        cache = KVCache(len(counts), counts, 1, 1, self.dtype, self.device)
        for keys in cache.keys:
            keys.fill_(float("nan"))
        return cache

    def _hash(self, salt: int, tokens: tuple[int, ...]) -> list[float]:
        h = rand.key(self.seed, salt, *tokens)
        return [rand.to_unit(rand.mix(h ^ v)) for v in range(self.vocab)]

    def logits(self, tokens: tuple[int, ...]) -> torch.Tensor:
        """Logits [vocab + padding] after a context."""
        if tokens not in self._memo:
            parts = [(self.local, self._hash(1, tokens[-2:])), (self.whole, self._hash(2, tokens))]
            if self.noise:
                parts.append((self.noise, self._hash(3, tokens)))
            row = sum(w * torch.tensor(h, dtype=self.dtype) for w, h in parts) * self.sign
            self._memo[tokens] = torch.cat((row, torch.full((self.padding,), 1e3, dtype=self.dtype)))
        return self._memo[tokens]

    def law(self, tokens: list[int], params: SamplingParams) -> torch.Tensor:
        """The processed law [vocab] after a context, without any engine."""
        return law(self.logits(tuple(tokens))[None, : self.vocab], params)[0]

    def forward_with_states(self, batch: Batch, cache: KVCache, taps: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward(batch, cache), batch.tokens.to(self.dtype)[:, None].expand(-1, len(taps))  # its state is the token itself

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        self.passes += 1
        self.rows += len(batch.tokens)
        ids = batch.tokens.to(self.dtype).view(-1, 1, 1)
        cache.write(0, batch.slots, ids, ids)
        if self.window is not None:
            cache.write(1, batch.local.slots, ids, ids)
        out, out_of = [], []
        for span in batch.spans:
            seen = cache.read(0, span)[0].flatten().tolist()
            assert not any(x != x for x in seen), "a slot was read that nobody wrote"
            assert self.rough or all(x == int(x) for x in seen), "what a rough model wrote was read by the target"
            if self.window is not None:
                near = cache.read(1, batch.local.spans[len(out_of)])[0].flatten().tolist()
                reach = min(span.length, self.window - 1 + span.rows.stop - span.rows.start)
                assert near == seen[-reach:], "a window holds other tokens than the text"
            out_of.append(span)
            context = tuple(int(x) for x in seen)
            count = span.rows.stop - span.rows.start
            out += [self.logits(context[: span.length - count + i + 1]) for i in range(count)]
        logits = torch.stack(out)
        return logits if batch.logit_rows is None else logits[batch.logit_rows]


class EchoHead:
    """The head of an EchoModel: the same law with noise, for the ids that `ids` keeps, and merciless about what it is given.

    Its "KV" stores the token after a position and the state at it, which is the token there: read back, the one must be
    the other shifted by one, or states and tokens have parted.
    """

    taps = (0,)

    def __init__(self, target: EchoModel, kept: int, noise: float = 1.5) -> None:
        self.echo = replace(target, noise=noise, _memo={})
        self.ids = torch.arange(kept) * target.vocab // kept
        self.dtype, self.device, self.kv_bytes_per_token = target.dtype, target.device, 16

    def new_cache(self, slots: int) -> KVCache:
        return self.echo.new_cache(slots)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def forward(self, batch: Batch, states: torch.Tensor, cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
        assert states.shape == (len(batch.tokens), 1)
        after = batch.tokens.to(self.dtype).view(-1, 1, 1)
        cache.write(0, batch.slots, after, states[:, :, None])
        rows = []
        for span in batch.spans:
            tokens, before = (x.flatten().tolist() for x in cache.read(0, span))
            assert before[1:] == tokens[:-1], "states and tokens have parted"
            context = (int(before[0]), *(int(t) for t in tokens))
            count = span.rows.stop - span.rows.start
            rows += [self.echo.logits(context[: len(context) - count + i + 1])[self.ids] for i in range(count)]
        logits, own = torch.stack(rows), after[:, :, 0]
        return (logits, own) if batch.logit_rows is None else (logits[batch.logit_rows], own[batch.logit_rows])


class WrongDrafter(LookupDrafter):
    """Drafts what hardly ever stands, and sometimes more or other than it was asked for, or raises."""

    def __init__(self, vocab: int, unruly: bool = False) -> None:
        self.vocab, self.unruly, self.calls = vocab, unruly, 0

    def lookup(self, seq, k):
        return [rand.key(seq.seed, 99, len(seq.tokens), i) % self.vocab for i in range(k)]

    def propose(self, chunks):
        self.calls += 1
        if self.unruly:
            trick = self.calls % 5
            if trick == 0:
                raise RuntimeError("a drafter that crashes")
            if trick == 1:
                return []
            if trick == 2:
                return [Proposal([0] * (c.k + 3)) for c in chunks]
            if trick == 3:
                return [Proposal([self.vocab + 7, -1][: c.k]) for c in chunks]
        return super().propose(chunks)


@dataclass
class RoughModel(EchoModel):
    """A target in fewer bits on the target's own cache: what it writes there is recognisably not what the target would write.

    The target must overwrite it before it reads it (EchoModel checks that what it reads are ids).
    """

    rough: float = 0.25

    def forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        logits = super().forward(batch, cache)
        ids = batch.tokens.to(self.dtype).view(-1, 1, 1) + self.rough
        cache.write(0, batch.slots, ids, ids)
        return logits


class Behind(NoDrafter):
    """Stands behind the predictions of requests, as with method="prediction"."""


class OtherWords:
    """A translation into ids of which a third do not exist: such a token t is spelled by a mark and the id of t + 1.

    Has what `Translation` has for drafters. Target ids 0..vocab-1, own ids 0..vocab, the last one being the mark.
    """

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.own = {t: (t * 7 + 3) % vocab for t in range(vocab)}
        assert len(set(self.own.values())) == vocab
        self.meaning = {i: t for t, i in self.own.items()}
        self.theirs = dict.fromkeys(range(vocab), b"")
        self.same = {t: i for t, i in self.own.items() if t % 3}

    def spelled(self, token: int) -> list[int]:
        return [self.same[token]] if token in self.same else [self.vocab, self.own[(token + 1) % self.vocab]]

    def prompt(self, ids) -> list[int]:
        return [i for t in ids for i in self.spelled(t)]

    def read(self, ids) -> list[int]:
        """Back to target ids."""
        out, marked = [], False
        for i in ids:
            if i != self.vocab:
                out.append((self.meaning[i] - marked) % self.vocab)
            marked = i == self.vocab
        return out

    def said(self, text, drafts, look_behind) -> list[int]:
        return self.read(drafts)


class OtherWordsModel(EchoModel):
    """A rough copy of a target that reads and writes the ids of `OtherWords`."""

    def logits(self, tokens: tuple[int, ...]) -> torch.Tensor:
        words = OtherWords(self.vocab - 1)
        inner = EchoModel(self.vocab - 1, self.seed, self.local, self.whole, self.noise)
        if tokens not in self._memo:
            out = torch.full((self.vocab,), -3.0, dtype=self.dtype)
            out[[words.own[t] for t in range(words.vocab)]] = inner.logits(tuple(words.read(tokens)))
            self._memo[tokens] = out
        return self._memo[tokens]


class AskingDrafter(ModelDrafter):
    """Stops by its own probabilities, before it draws, whatever the pace says: as biased a rule as the law allows."""

    @property
    def pays(self):
        return lambda seq, odds: odds[-1] > 0.2 or len(odds) == 2

    @pays.setter
    def pays(self, value):
        """Never mind."""


@functools.cache
def corpus(vocab: int, seed: int, local: float, whole: float) -> Corpus:
    """An index of what a target likes to say."""
    target = EchoModel(vocab, seed, local, whole)
    documents = [plain(target, [a, a + 1], SamplingParams(temperature=0, max_tokens=40), 0) for a in range(0, vocab - 1, 3)]
    with tempfile.TemporaryDirectory() as folder:
        create(Path(folder) / "index", "echo", "", vocab, documents)
        return Corpus(Path(folder) / "index")  # its files stay mapped


def expecting(kind: str, target: EchoModel, prompt, params: SamplingParams) -> SamplingParams:
    """For the kind "prediction": the same with what comes without drafts as prediction, with a change, a cut and an addition."""
    if kind != "prediction":
        return params
    answer = plain(target, prompt, params, params.seed or 0)
    answer[4:5] = [(answer[4] + 1) % target.vocab]
    del answer[12:15]
    answer[20:20] = [1, 2, 3]
    return replace(params, prediction=answer)


DRAFTERS = (
    *("none", "ngram", "suffix", "corpus", "prediction", "model", "greedy-model", "self", "adversary", "wrong", "head", "small-head"),
    *("hybrid", "quantised", "asking", "tokens", "text"),
)


def make_drafter(kind: str, target: EchoModel, max_len: int = 4096, max_rows: int = 64) -> Drafter:
    """One of `DRAFTERS` for a target."""
    if kind == "none":
        return NoDrafter()
    if kind == "ngram":
        return NgramDrafter(1, 3)
    if kind == "suffix":
        return SuffixDrafter(4.0, 0.1)
    if kind == "corpus":
        return CorpusDrafter(corpus(target.vocab, target.seed, target.local, target.whole), SuffixDrafter(4.0, 0.1))
    if kind == "prediction":
        return Behind()
    if kind == "quantised":
        rough = RoughModel(target.vocab, target.seed, target.local, target.whole, noise=1.0)
        return QuantisedDrafter(rough, target.vocab, max_len, max_rows, None)
    if kind in ("tokens", "text"):
        other = OtherWordsModel(target.vocab + 1, target.seed, target.local, target.whole, noise=1.0)
        given = (other, OtherWords(target.vocab), other.vocab, max_len, max_rows, None)
        return TokenDrafter(*given, target_vocab=target.vocab) if kind == "tokens" else TextDrafter(*given)
    if kind == "asking":
        rough = EchoModel(target.vocab, target.seed, target.local, target.whole, noise=1.5)
        return AskingDrafter(rough, target.vocab, max_len, max_rows, None)
    if kind == "hybrid":
        members = {name: make_drafter(name, target, max_len, max_rows) for name in ("suffix", "wrong", "model", "adversary")}
        return HybridDrafter([Member(name, each, 3 + i) for i, (name, each) in enumerate(members.items())])
    if kind in ("wrong", "unruly"):
        return WrongDrafter(target.vocab, unruly=kind == "unruly")
    if kind in ("head", "small-head"):
        kept = target.vocab if kind == "head" else max(2, target.vocab // 2)
        return HeadDrafter(EchoHead(target, kept), target.vocab, max_len, max_rows, None)
    shape = {"vocab": target.vocab, "seed": target.seed, "local": target.local, "whole": target.whole}
    changed = {"self": {}, "adversary": {"sign": -1.0}}.get(kind, {"noise": 1.5})
    temperature = 0.0 if kind == "greedy-model" else None
    return ModelDrafter(EchoModel(**shape, **changed), target.vocab, max_len, max_rows, temperature)


def make_engine(
    target: EchoModel,
    drafter: Drafter,
    *,
    blocks: int = 400,
    local_blocks: int | None = None,
    block_size: int = 4,
    max_rows: int = 64,
    max_seqs: int = 16,
    max_len: int = 512,
    share: bool = True,
    rule: str = "rejection",
    k: int = 5,
    random_k: int | None = None,
    adaptive: bool = False,
    k_predicted: int | None = None,
    tokenizer=None,
    eos=(),
) -> Engine:
    """A real engine around doubles. `random_k` draws k in 0..5 anew for every sequence and step: a constant k hides stale KV."""
    drafts = 0 if type(drafter) is NoDrafter else k
    lengths = {"num_speculative_tokens": drafts, "num_prediction_tokens": k_predicted}
    spec = SpeculativeConfig(method="ngram" if drafts else "none", verify=rule, adaptive=adaptive, **lengths)
    config = EngineConfig(
        model="double",
        max_num_seqs=max_seqs,
        max_num_batched_tokens=max_rows,
        block_size=block_size,
        enable_prefix_caching=share,
        speculative=spec,
    )
    engine = assemble(config, target, drafter, Blocks(blocks, local_blocks), max_len, target.vocab, tokenizer, eos)
    engine.rule = rule
    if random_k is not None and drafts:
        engine.draft_length = lambda seq: rand.key(random_k, seq.id, len(seq.tokens)) % (k + 1)
    return engine


def check(engine: Engine) -> None:
    """The pool's invariant against the tables of every live sequence."""
    pool: BlockPool = engine.pool
    live = [*engine.scheduler.running, *engine.scheduler.waiting]
    pool.check([s.table for s in live])
    if pool.local is not None:
        pool.local.check([s.local for s in live])
        for s in live:
            kept = sum(b != HOLE for b in s.local)
            assert kept <= -(-(pool.window - 1) // pool.block_size) + 2, "blocks before the window were not given back"
    for s in live:
        assert len(s.table) <= -(-len(s.tokens) // pool.block_size), "a sequence holds blocks beyond its committed tokens"


def run(engine: Engine, prompts, params, *, steps_between: int = 0, limit: int = 20_000):
    """Run prompts to the end, checking the pool after every step; outputs in order. `steps_between` staggers arrivals."""
    params = params if isinstance(params, list) else [params] * len(prompts)
    requests = []
    for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        requests.append(engine.add(str(i), None, list(prompt), p))
        for _ in range(steps_between):
            engine.step()
            check(engine)
    for _ in range(limit):
        if not engine.has_work:
            break
        engine.step()
        check(engine)
    assert not engine.has_work, "the engine did not come to an end"
    assert not engine.owner and not engine.requests
    return [r.output() for r in requests]


def plain(target: EchoModel, prompt, params: SamplingParams, seed: int, eos=()) -> list[int]:
    """Plain decoding by an independent loop: argmax, or the race keyed by the absolute position."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < params.max_tokens:
        p = target.law(tokens, params)
        tokens.append(int(p.argmax()) if params.greedy else race(p, seed, len(tokens)))
        if (tokens[-1] in eos and not params.ignore_eos) or tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(prompt) :]


def totals(outputs) -> tuple[int, int]:
    """(drafted, accepted) over all outputs."""
    stats = [o.metrics.speculative_decoding for o in outputs]
    return sum(s.num_draft_tokens for s in stats), sum(s.num_accepted_draft_tokens for s in stats)
