"""`headstart distill` from end to end: texts, states, training, export, report. Every part is taken up where it was left."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headstart.core.errors import ConfigError
from headstart.distill import export, gain, prompts, report, vocabulary
from headstart.distill.data import Settings, Split, Store, Writer, select
from headstart.distill.eagle import HeadStudent, Target
from headstart.distill.features import Example, extract
from headstart.distill.small import SmallStudent, pruned
from headstart.distill.train import Options, Progress, measure, train
from headstart.models.decoder import ModelConfig
from headstart.models.head import HeadConfig

if TYPE_CHECKING:
    from headstart.api import LLM

KINDS = ("head", "model")
_WORK = "work"
_ON_DEMAND = 5  # drafts a step that a head's config recommends


@dataclass(frozen=True)
class Plan:
    """What is to be made, and from what."""

    kind: str
    out: Path
    tokens: int
    prompts: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_tokens: int = 256
    batch: int = 32
    seed: int = 0
    vocab: int = 8192
    taps: tuple[int, ...] = ()
    passes: int = 3
    layers: int | None = None  # of a small model
    draft: str | None = None  # a checkpoint to start from, instead of the target's layers
    lora: bool = False
    training: Options = field(default_factory=Options)


@dataclass
class Made:
    """What came of it, for report and model card."""

    plan: Plan
    target: str
    split: Split
    progress: Progress
    before: list[dict[str, float]]
    after: list[dict[str, float]]
    seconds: dict[str, float]
    facts: dict[str, Any]
    speed: list[dict[str, Any]] = field(default_factory=list)  # of gain.measure; empty where no question fits into the context


def distil(llm: LLM, plan: Plan, say: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> Made | None:
    """Make a draft of `llm`; None when `stop` came first: the same call goes on from there. Raises ConfigError, ModelError."""
    clock = _Clock(plan.out / _WORK / "seconds.json")
    _check_target(llm)
    taps = _taps(llm, plan)
    small = _small(llm, plan) if plan.kind == "model" else None  # what cannot be is found before the target writes for an hour
    split = write_texts(llm, plan, say, stop)
    clock.lap("texts")
    if stop():
        return None
    folder = plan.out / _WORK / "states"
    examples = extract(llm.engine, split.train, taps, folder, say)
    held_out = extract(llm.engine, split.held_out, taps, folder, say)
    clock.lap("states")
    student: Any = small or _head(llm, plan, split, taps)
    path = plan.out / _WORK / f"{plan.kind}.safetensors"
    what = f"{plan.kind}, taps {taps}, {plan.vocab} tokens, {plan.passes} passes, {plan.layers} layers of {plan.draft}, lora {plan.lora}"
    progress, done = train(student, examples, held_out, plan.training, path, say, stop, what)
    clock.lap("training")
    if not done:
        return None
    before = [{"alpha": a, "agree": g} for a, g in zip(progress.points[0]["alpha"], progress.points[0]["agree"], strict=True)]
    made = Made(plan, _name(llm.config.model), split, progress, before, figures(student, held_out), clock.seconds, {})
    _export(llm, student, made, split)
    say("speed on held-out questions")
    try:
        made.speed = gain.measure(llm, plan.out, plan.passes if plan.kind == "head" else _ON_DEMAND, split.held_out, stop)
    except ConfigError as e:
        say(f"the speed is not measured: {e}")
    report.write(made)
    return made


def _name(model: str) -> str:
    """What a target is called in files that are handed on: a hub id, or the name of a file or folder, without where it lies here."""
    return Path(model).name if Path(model).expanduser().exists() else model


class _Clock:
    """Seconds that each part took, over all runs; kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.since = path, time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.since
        self.since = now
        export.write_json(self.path, self.seconds)


def _taps(llm: LLM, plan: Plan) -> tuple[int, ...]:
    """The layers that a head reads: near the start, past the middle, and what leaves the last. Raises ConfigError."""
    layers = llm.engine.target.model.config.layers  # type: ignore[attr-defined]
    if plan.kind == "model":
        return (layers,)
    taps = plan.taps or tuple(sorted({round(0.27 * layers), round(0.6 * layers), layers}))
    if taps[-1] != layers or len(set(taps)) < len(taps):
        raise ConfigError(f"--taps {','.join(map(str, taps))} must end with {layers}, what leaves the target's last layer: it teaches")
    return taps


def write_texts(llm: LLM, plan: Plan, say: Callable[[str], None], stop: Callable[[], bool]) -> Split:
    """The texts of a plan: those that are there, and as many more as are wanted."""
    excluded = prompts.exclusions(plan.exclude)
    given, refused = prompts.read(plan.prompts, excluded)
    if plan.prompts and not given:
        raise ConfigError("no prompt is left to train on: all of them are excluded")
    if refused:
        say(f"{refused} prompts are refused: they are among the excluded questions")
    digest = hashlib.sha256("\n".join(map(prompts.digest, given)).encode()).hexdigest() if given else ""
    settings = Settings(Path(llm.config.model).name, plan.seed, digest, max_tokens=plan.max_tokens)
    store = Store(plan.out / _WORK / "texts", settings)
    try:
        writer = Writer(llm, store, settings, given, excluded, plan.batch)
        split = writer.write(plan.tokens, say, stop)
    finally:
        store.close()
    say(f"texts: {len(split.train):,} to train on, {len(split.held_out):,} held out, {split.tokens:,} tokens; left out: {_left(split)}")
    return split


def _left(split: Split) -> str:
    return ", ".join(f"{n} {why}" for why, n in split.left_out.items() if n) or "none"


def _check_target(llm: LLM) -> None:
    """Targets whose law is more than head(norm(state)) cannot teach from their last state. Raises ConfigError."""
    config = llm.engine.target.model.config  # type: ignore[attr-defined]
    for name, why in (("logit_cap", "caps its logits"), ("window", "has sliding windows")):
        if getattr(config, name, None) is not None:
            raise ConfigError(f"{llm.config.model} {why}: headstart distill does not know such targets yet")
    if config.logit_scale != 1.0 or config.unit_norms:
        raise ConfigError(f"{llm.config.model} scales its logits or norms: headstart distill does not know such targets yet")


def _reader(llm: LLM) -> tuple[Callable[[str], torch.Tensor], list[str]]:
    """The target's tensors in fp32 by name, and their names."""
    from headstart.runtime.checkpoint import convert, open_checkpoint

    checkpoint = open_checkpoint(llm.config.model, llm.config.revision, llm.config.hf_token)
    return lambda name: convert(checkpoint.tensor(name), name, torch.float32, torch.device("cpu")), checkpoint.tensor_names


def target_tables(llm: LLM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embedding, norm before the head, and head of the target, in fp32."""
    model: Any = llm.engine.target.model
    read, _ = _reader(llm)
    embedding = read("model.embed_tokens.weight")
    head = embedding if model.config.tied else read("lm_head.weight")
    return embedding, read("model.norm.weight"), head


def _gates(llm: LLM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """What the MLP of the target's last layer begins with; None where it is stored in another way."""
    read, known = _reader(llm)
    layer = f"model.layers.{llm.engine.target.model.config.layers - 1}."  # type: ignore[attr-defined]
    names = [f"{layer}{n}.weight" for n in ("mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm")]
    if not all(name in known for name in names):
        return None
    gate, up, norm = map(read, names)
    return gate, up, norm


def _head(llm: LLM, plan: Plan, split: Split, taps: Sequence[int]) -> HeadStudent:
    model: Any = llm.engine.target.model
    embedding, norm, head = target_tables(llm)
    ids = vocabulary.choose(split.train, llm.get_tokenizer(), llm.engine.eos_ids, llm.engine.target.vocab, plan.vocab)
    c = model.config
    own = -(-c.hidden // c.head_dim)  # heads that see their own row only, and carry embedding and state; a third more see the text
    heads = own + max(1, own // 3)
    layer = ModelConfig(
        c.vocab_size, c.hidden, 1, heads, heads, c.head_dim, c.intermediate, c.eps, c.max_len, rope_theta=c.rope_theta
    )  # a Llama layer, whatever the target's are; of as many key heads as query heads, since values carry the embedding
    config = HeadConfig(layer, tuple(taps), len(ids), model.config.hidden, norm_before_residual=False)
    return HeadStudent(config, Target(embedding, norm, head[ids], ids, model.config.eps, _gates(llm)), plan.passes, plan.seed)


def _small(llm: LLM, plan: Plan) -> SmallStudent:
    from headstart.runtime.checkpoint import open_checkpoint
    from headstart.runtime.tokenizer import first_difference, open_tokenizer

    _, norm, head = target_tables(llm)
    target: Any = llm.engine.target.model
    checkpoint = open_checkpoint(llm.config.model, llm.config.revision, llm.config.hf_token)
    if plan.draft is None:
        model = pruned(checkpoint, plan.layers or max(1, target.config.layers // 10))
    else:
        from transformers import AutoModelForCausalLM

        difference = first_difference(llm.get_tokenizer(), open_tokenizer(plan.draft))
        if difference:
            raise ConfigError(f"--draft {plan.draft} has another vocabulary: {difference}; start from a model with the target's tokenizer")
        model = AutoModelForCausalLM.from_pretrained(plan.draft, dtype=torch.float32, trust_remote_code=False)
        if model.config.vocab_size != head.shape[0]:
            raise ConfigError(
                f"--draft {plan.draft} has {model.config.vocab_size} vocabulary rows, the target {head.shape[0]}: pad it first"
            )
    return SmallStudent(model, norm, head, target.config.eps, plan.lora, plan.seed)


def figures(student: Any, examples: Sequence[Example]) -> list[dict[str, float]]:
    """alpha and agreement of each draft position on texts."""
    return [{"alpha": s.alpha / s.weight, "agree": s.agree / s.weight} for s in measure(student, examples) if s.weight]


def _export(llm: LLM, student: Any, made: Made, split: Split) -> None:
    out = made.plan.out
    if isinstance(student, HeadStudent):
        said = export.head_config(student.config, made.target, ["LlamaForCausalLM"], _ON_DEMAND)
        export.export_head(out, student.config, student.exported(), student.target.ids, said)
        made.facts["vocabulary"] = len(student.target.ids)
        made.facts["coverage"] = vocabulary.coverage(split.held_out, student.target.ids)
        made.facts["taps"] = list(student.config.taps)
    else:
        export.export_model(out, student.finished(), llm.get_tokenizer(), llm.engine.eos_ids)
        made.facts["layers"] = student.model.config.num_hidden_layers
    made.facts["bytes"] = (out / "model.safetensors").stat().st_size
    made.facts["weights"] = sum(p.numel() for p in student.parameters())


def clean(out: Path) -> None:
    """Delete what only resuming needs."""
    shutil.rmtree(out / _WORK, ignore_errors=True)


__all__ = ["KINDS", "Made", "Plan", "clean", "distil", "select"]
