"""The training loop, for every kind of draft: the same steps in the same order, whether it was killed in between or not.

Which texts make a batch is a function of the seed and the step; how many steps there are is written down before the first. All
else is in one file that is replaced as a whole. So a run that is killed and taken up again ends with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headstart.core.errors import ConfigError, ModelError
from headstart.distill.features import Batch, Example
from headstart.distill.losses import Sums, Teacher, law_loss

_SAVE_SECONDS = 60.0
_TRIALS = 3  # batches timed, without a step, to see how many fit a time budget
_EVALUATIONS = 12


class Student(Protocol):
    """What is trained; a torch module."""

    passes: int

    def named_parameters(self) -> Iterator[tuple[str, Any]]: ...
    def groups(self, rate: float) -> list[dict[str, object]]: ...
    def start(self, examples: list[Example]) -> None: ...
    def fixed(self) -> dict[str, Tensor]: ...
    def batch(self, examples: list[Example]) -> Batch: ...
    def laws(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Teacher, Tensor]]: ...


@dataclass(frozen=True)
class Options:
    """How to train."""

    loss: str = "mix"
    rate: float = 6e-4
    batch_tokens: int = 2048
    epochs: float = 4.0
    time_budget: float | None = None  # seconds; instead of epochs
    replay: float = 0.15  # the last share of the steps weighs positions by how likely a draft is rejected there
    decay: float = 0.8  # weight of each further draft
    seed: int = 0


@dataclass
class Progress:
    """How far training is. `points`: one dictionary for each evaluation."""

    steps: int
    step: int = 0
    best: float = -1.0
    best_step: int = 0
    points: list[dict[str, Any]] = field(default_factory=list)
    since: Sums = field(default_factory=Sums)  # of the training steps after the last point


def batches(examples: Sequence[Example], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """One epoch: every text once, texts of similar length together, in an order that only seed and epoch decide."""
    g = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(examples), generator=g).tolist()
    out: list[list[int]] = []
    for at in range(0, len(order), 128):
        now: list[int] = []
        for i in sorted(order[at : at + 128], key=lambda i: (len(examples[i].tokens), i)):
            if now and (len(now) + 1) * len(examples[i].tokens) > tokens:
                out.append(now)
                now = []
            now.append(i)
        out.append(now)
    return [out[i] for i in torch.randperm(len(out), generator=g).tolist()]


def train(
    student: Student,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    options: Options,
    path: Path,
    say: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
    what: str = "",
) -> tuple[Progress, bool]:
    """Train from where `path` says, or from the start; whether it came to the end. The student then has its best parameters.

    what: what is trained, in words; a state of something else is refused.
    """
    if not examples or not held_out:
        raise ConfigError("there are too few texts to train on and to judge by: raise --tokens")
    named = [(n, p) for n, p in student.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(student.groups(options.rate), betas=(0.9, 0.95), weight_decay=0.0)
    rates = [group["lr"] for group in optimizer.param_groups]
    best = {n: p.detach().clone() for n, p in named}
    said = _said(options, what, (*examples, *held_out))
    progress = _load(path, said, student, named, optimizer, best)
    if progress is None:
        student.start(list(examples))
        progress = Progress(_steps(student, examples, options))
        _evaluate(student, held_out, progress, options, named, best)
        say(_words(progress, 0.0, 0))
        _save(path, said, progress, student, named, optimizer, best)
    first_replay = progress.steps - int(options.replay * progress.steps)
    every = max(1, progress.steps // _EVALUATIONS)
    order, epoch = batches(examples, options.batch_tokens, options.seed, 0), 0
    begun, begun_step, saved = time.monotonic(), progress.step, time.monotonic()
    while progress.step < progress.steps and not stop():
        if progress.step // len(order) != epoch:  # every epoch has as many batches as its lengths make
            epoch = progress.step // len(order)
            order = _same_count(batches(examples, options.batch_tokens, options.seed, epoch), len(order))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * _schedule(progress.step, progress.steps)
        batch = student.batch([examples[i] for i in order[progress.step % len(order)]])
        progress.since += _step(student, batch, optimizer, named, options, progress.step >= first_replay)
        progress.step += 1
        if progress.step % every == 0 or progress.step == progress.steps:
            _evaluate(student, held_out, progress, options, named, best)
            say(_words(progress, time.monotonic() - begun, progress.step - begun_step))
        if time.monotonic() - saved > _SAVE_SECONDS or progress.step == progress.steps:
            _save(path, said, progress, student, named, optimizer, best)
            saved = time.monotonic()
    if progress.step < progress.steps:
        _save(path, said, progress, student, named, optimizer, best)
        return progress, False
    with torch.no_grad():
        for n, p in named:
            p.copy_(best[n])
    return progress, True


def _same_count(order: list[list[int]], count: int) -> list[list[int]]:
    """As many batches as the first epoch had, so that a step's epoch is a division."""
    return (order * (count // len(order) + 1))[:count]


def _steps(student: Student, examples: Sequence[Example], options: Options) -> int:
    """How many steps there will be: so many epochs, or what fits the time."""
    order = batches(examples, options.batch_tokens, options.seed, 0)
    if options.time_budget is None:
        return max(1, round(options.epochs * len(order)))
    begun = time.monotonic()
    for i in range(_TRIALS):
        total, _ = _loss(student, student.batch([examples[j] for j in order[i % len(order)]]), options, False)
        total.backward()
    for _, p in student.named_parameters():
        p.grad = None
    return max(1, int(options.time_budget / ((time.monotonic() - begun) / _TRIALS)))


def _schedule(step: int, steps: int) -> float:
    """Warm-up over 4 % of the steps, then a cosine to a twentieth."""
    warm = max(1, round(0.04 * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def _loss(student: Student, batch: Batch, options: Options, replay: bool) -> tuple[Tensor, Sums]:
    """The loss of a batch over all draft positions, and the figures of the first."""
    total, first, texts = torch.zeros(()), Sums(), len(batch.tokens)
    for j, (states, head, teacher, weight) in enumerate(student.laws(batch)):
        loss, sums = law_loss(states, head, teacher, weight / texts, options.loss, replay)
        total = total + options.decay**j * loss
        if j == 0:
            first = sums
    return total, first


def _step(student: Student, batch: Batch, optimizer: Any, named: Sequence[tuple[str, Any]], options: Options, replay: bool) -> Sums:
    optimizer.zero_grad(set_to_none=True)
    total, sums = _loss(student, batch, options, replay)
    total.backward()
    torch.nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
    optimizer.step()
    return sums


@torch.no_grad()
def measure(student: Student, examples: Sequence[Example], tokens: int = 2048) -> list[Sums]:
    """alpha and agreement of each draft position on texts, every text counting as one."""
    out = [Sums() for _ in range(student.passes)]
    for some in batches(examples, tokens, 0, 0):
        for j, (states, head, teacher, weight) in enumerate(student.laws(student.batch([examples[i] for i in some]))):
            out[j] += law_loss(states, head, teacher, weight, "tv")[1]
    return out


def _evaluate(
    student: Student,
    held_out: Sequence[Example],
    progress: Progress,
    options: Options,
    named: Sequence[tuple[str, Any]],
    best: dict[str, Tensor],
) -> None:
    """Judge by texts that are not trained on; keep the parameters that do best there."""
    found = measure(student, held_out, options.batch_tokens)
    alphas = [s.alpha / s.weight for s in found if s.weight]
    since, progress.since = progress.since, Sums()
    progress.points.append(
        {
            "step": progress.step,
            "loss": since.loss / since.weight if since.weight else None,
            "train_alpha": since.alpha / since.weight if since.weight else None,
            "alpha": alphas,
            "agree": [s.agree / s.weight for s in found if s.weight],
        }
    )
    expected = sum(math.prod(alphas[: i + 1]) for i in range(len(alphas)))
    if expected > progress.best:
        progress.best, progress.best_step = expected, progress.step
        for n, p in named:
            best[n].copy_(p.detach())


def _words(progress: Progress, seconds: float, done: int) -> str:
    point = progress.points[-1]
    left = f"; {seconds / done * (progress.steps - progress.step) / 60:.0f} min left" if done else ""
    alphas = " ".join(f"{a:.3f}" for a in point["alpha"])
    trained = "" if point["train_alpha"] is None else f", {point['train_alpha']:.3f} in training"
    return f"step {progress.step:,} of {progress.steps:,}: alpha {alphas} on held-out text{trained}{left}"


def _save(
    path: Path,
    said: str,
    progress: Progress,
    student: Student,
    named: Sequence[tuple[str, Any]],
    optimizer: Any,
    best: dict[str, Tensor],
) -> None:
    tensors = {f"fixed.{n}": t for n, t in student.fixed().items()}
    for n, p in named:
        tensors[f"now.{n}"], tensors[f"best.{n}"] = p.detach(), best[n]
        for key, value in optimizer.state.get(p, {}).items():
            tensors[f"{key}.{n}"] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    metadata = {"progress": json.dumps(asdict(progress)), "said": said}
    save_file({n: t.contiguous().clone() for n, t in tensors.items()}, part, metadata)
    os.replace(part, path)


def _said(options: Options, what: str, examples: Sequence[Example]) -> str:
    """All that decides how a training goes: its options, what is trained, and the texts."""
    digest = hashlib.sha256()
    for e in examples:
        digest.update(e.tokens.numpy().tobytes())
    return json.dumps({**asdict(options), "what": what, "texts": digest.hexdigest()}, sort_keys=True)


def _load(
    path: Path, said: str, student: Student, named: Sequence[tuple[str, Any]], optimizer: Any, best: dict[str, Tensor]
) -> Progress | None:
    """Take a saved state over. Raises ConfigError when it is of another training, ModelError when it is damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as f:
            if f.metadata()["said"] != said:
                raise ConfigError(f"{path} is of a training with other options or texts: choose another --out, or delete it to train anew")
            progress = Progress(**json.loads(f.metadata()["progress"]))
            progress.since = Sums(**progress.since)  # type: ignore[arg-type]
            with torch.no_grad():
                for n, t in student.fixed().items():
                    t.copy_(f.get_tensor(f"fixed.{n}"))
                for n, p in named:
                    p.copy_(f.get_tensor(f"now.{n}"))
                    best[n].copy_(f.get_tensor(f"best.{n}"))
                    if progress.step:
                        optimizer.state[p] = {key: f.get_tensor(f"{key}.{n}").clone() for key in ("step", "exp_avg", "exp_avg_sq")}
            return progress
    except (SafetensorError, OSError, KeyError, TypeError, RuntimeError) as e:
        raise ModelError(f"{path} is damaged ({e}): delete it to start training again") from None
