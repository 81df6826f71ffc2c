"""Arms: the ways of decoding that are compared. One target serves all of them; an arm brings a drafter and its settings.

Knows how to make arms and how to put one to work; what they answer is none of its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headstart import draft
from headstart.api import LLM
from headstart.core import rand
from headstart.core.errors import ConfigError
from headstart.core.pace import Pace
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Sequence
from headstart.draft.base import DraftContext, Drafter, LookupDrafter
from headstart.draft.costs import measured_pace
from headstart.draft.none import NoDrafter
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_model

PLAIN = "plain"
_SYNTHETIC = (
    "its drafts are the plain answer, each token spoilt at random, made in no time: the text is the target's own, the speed is that of no "
    "real draft"
)
_SPOIL = 0x5B011  # the lane of uniforms that spoil replayed drafts: nothing else draws from it


@dataclass
class Arm:
    """One way of decoding. `name` is unique in a run; `synthetic` is the acceptance that was asked for, None for a real draft."""

    name: str
    drafter: Drafter
    method: str = "none"
    k: int = 0
    verify: str = "rejection"
    pace: Pace | None = None  # learned over the whole run; None: always k drafts
    model: str | None = None
    draft: str = ""  # what drafts, in short
    synthetic: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def drafts(self) -> bool:
        return self.k > 0

    def described(self) -> dict[str, Any]:
        """What the report says about it."""
        names = ("name", "method", "model", "k", "verify", "synthetic", "notes")
        return {**{n: getattr(self, n) for n in names}, "adaptive": self.pace is not None}


class ReplayDrafter(LookupDrafter):
    """Drafts the answer that plain decoding gave, each token spoilt with probability 1 - acceptance, at no cost.

    The target judges these drafts as any others, so the output stays its own. What is synthetic is the speed: no real
    draft knows the answer. Invariant: `answers` maps the prompt of a plain answer to its tokens.
    """

    def __init__(self, acceptance: float, vocab: int) -> None:
        self.acceptance, self.vocab = acceptance, vocab
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def lookup(self, seq: Sequence, k: int) -> list[int]:
        at = len(seq.tokens) - seq.prompt_len
        answer = self.answers.get(tuple(seq.tokens[: seq.prompt_len]), [])
        # Another id is never the one the target chooses here, so a spoilt draft always falls.
        return [t if self._good(seq, i) else (t + 1) % self.vocab for i, t in enumerate(answer[at : at + k])]

    def _good(self, seq: Sequence, i: int) -> bool:
        return rand.uniform(seq.seed, _SPOIL, len(seq.tokens), i) < self.acceptance


def plain_arm() -> Arm:
    """Plain decoding: what every other arm is compared with."""
    return Arm(PLAIN, NoDrafter())


def make_arms(llm: LLM, specs: Seq[Mapping[str, Any]], synthetic: Seq[tuple[float, int]] = (), verify: str = "rejection") -> list[Arm]:
    """The plain arm, one for each `speculative_config`, and one for each synthetic (acceptance, draft length).

    All drafters share the target's blocks. Raises ConfigError, ModelError.
    """
    out = [plain_arm()]
    loaded: dict[tuple[str, ...], Arm] = {}
    for given in specs:
        spec = SpeculativeConfig.from_dict(given)
        out.append(_real_arm(llm, spec, loaded))
    for acceptance, k in synthetic:
        replay = ReplayDrafter(acceptance, llm.engine.target.vocab)
        out.append(Arm(f"synthetic {acceptance:g} k={k}", replay, "synthetic", k, verify, synthetic=acceptance, notes=[_SYNTHETIC]))
    names = [arm.name for arm in out]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice:
        raise ConfigError(f"two arms are called {twice!r}: give each draft and draft length once")
    return out


def _load_target(llm: LLM, quantization: str) -> Any:
    """The target once more, with its weights quantised. Raises ModelError."""
    model, checkpoint = llm.engine.target.model, open_checkpoint(llm.config.model, llm.config.revision, llm.config.hf_token)
    return load_model(checkpoint, model.dtype, model.device, quantization)


def _called(spec: SpeculativeConfig, llm: LLM) -> str:
    """A drafter's name in reports: its file's or its method's; a copy of the target in fewer bits has the target's own file."""
    if spec.method == "quantised":
        return f"{spec.method} {spec.quantization}"
    what = (spec.model or spec.corpus or str(spec.method)).rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    if not spec.quantization:
        return what
    return f"{'target' if spec.model == llm.config.model else what} {spec.quantization}"


def _real_arm(llm: LLM, spec: SpeculativeConfig, loaded: dict[tuple[str, ...], Arm]) -> Arm:
    """An arm of a real drafter; one that differs in k or rule only shares the drafter of the first."""
    assert spec.method and spec.num_speculative_tokens
    own = replace(spec, num_speculative_tokens=None, num_prediction_tokens=None, verify="rejection", adaptive=True)
    key = tuple(repr(getattr(own, f.name)) for f in fields(own))
    notes: list[str] = []
    if key in loaded:
        drafter = loaded[key].drafter
    else:
        engine, model = llm.engine, llm.engine.target.model
        context = DraftContext(
            tokenizer=engine.tokenizer,
            vocab=engine.target.vocab,
            dtype=model.dtype,
            device=model.device,
            max_rows=engine.scheduler.max_rows,
            target_parameters=getattr(model, "parameters", 0),
            hf_token=llm.config.hf_token,
            note=notes.append,
            load_target=lambda quantization: _load_target(llm, quantization),
            target=model,
        )
        drafter = draft.build(spec, context)
        drafter.allocate(engine.pool.num_blocks, engine.pool.block_size)
        drafter.attach(engine.target)
    what = "+".join(_called(each, llm) for each in spec.drafters or (spec,) if isinstance(each, SpeculativeConfig))
    llm.engine.pool.forget()  # passes may be measured in its blocks
    pace = measured_pace(drafter, llm.engine.target, llm.engine.pool.num_blocks) if spec.adaptive else None
    length = f"{what} k{'<=' if spec.adaptive else '='}{spec.num_speculative_tokens}"
    verify = spec.verify or "rejection"
    name = length + ("" if verify == "rejection" else f" {verify}")
    arm = Arm(name, drafter, spec.method, spec.num_speculative_tokens, verify, pace, spec.model, what, notes=notes)
    loaded.setdefault(key, arm)
    return arm
