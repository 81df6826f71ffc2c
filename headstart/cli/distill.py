"""`headstart distill`: a draft from the target, by one command."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from headstart.cli.interrupt import Interruptible
from headstart.cli.options import ModelOptions
from headstart.cli.session import open_llm
from headstart.cli.show import note, terminal
from headstart.core.checks import integer, number
from headstart.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from headstart.distill.run import Plan

_KINDS = ("head", "model")
_LOSSES = ("mix", "kl", "tv", "ce-l1")
_LINE_SECONDS = 10.0  # between two lines of progress where there is no terminal


@dataclass
class DataOptions:
    """What is learned from."""

    prompts: Annotated[
        list[str],
        Option(
            "--prompts", help="Prompts as JSON lines (prompt, turns or conversations). Default: the target writes its own.", metavar="FILE"
        ),
    ] = field(default_factory=list)
    exclude: Annotated[
        list[str], Option("--exclude", help="Questions that must not be trained on: those it will be judged by.", metavar="FILE")
    ] = field(default_factory=list)
    tokens: Annotated[str, Option("--tokens", help="How much the target writes, such as 300k or 2M.", metavar="N")] = "300k"
    max_tokens: Annotated[int, Option("--max-tokens", help="Longest answer, in tokens.", metavar="N")] = 256
    batch: Annotated[int, Option("--batch", help="Texts written at once.", metavar="N")] = 32


@dataclass
class DraftOptions:
    """What is made."""

    kind: Annotated[str, Option("--kind", help="head: on the target's hidden states; model: a small model.", metavar="KIND")] = "head"
    draft_vocab: Annotated[int, Option("--draft-vocab", help="head: tokens it can say.", metavar="N")] = 8192
    taps: Annotated[
        str | None,
        Option("--taps", help="head: layers of the target it reads, such as 8,18,30.", metavar="L,L,L"),
    ] = None
    unroll: Annotated[int, Option("--unroll", help="head: drafts in a row that it is trained for.", metavar="N")] = 3
    layers: Annotated[int | None, Option("--layers", help="model: layers of the target kept. Default: a tenth.", metavar="N")] = None
    draft: Annotated[str | None, Option("--draft", "-d", help="model: a checkpoint to start from.", metavar="M")] = None
    lora: Annotated[bool, Option("--lora", help="model: train low-rank parts of attention only.")] = False


@dataclass
class TrainingOptions:
    """How it is trained."""

    loss: Annotated[str, Option(help="mix (KL, then acceptance itself), kl, tv or ce-l1.", metavar="LOSS")] = "mix"
    learning_rate: Annotated[float, Option(help="Peak of the cosine.", metavar="R")] = 3e-4
    epochs: Annotated[float | None, Option(help="Times that every text is seen. Default: 4.", metavar="N")] = None
    time_budget: Annotated[str | None, Option(help="Instead of --epochs, time for training: 30m, 2h.", metavar="T")] = None
    seed: Annotated[int, Option(help="Of texts and training.", metavar="N")] = 0


def distill(
    *,
    target: Annotated[str, Argument(help="The model to make a draft for.", metavar="TARGET")],
    out: Annotated[str, Option("--out", "-o", help="Folder of the draft.", metavar="DIR")],
    data: DataOptions,
    made: DraftOptions,
    training: TrainingOptions,
    model: ModelOptions,
    resume: Annotated[bool, Option("--resume", help="Go on with what --out holds, after a kill or Ctrl-C.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress and no notes.")] = False,
) -> None:
    """Make a draft for a target: it writes texts, a draft learns its laws from them, a report says how often drafts stand.

    headstart distill TARGET --out draft --exclude questions.jsonl

    headstart bench --model TARGET --draft ./draft
    """
    if model.model not in (None, target):
        raise ConfigError(f"--model {model.model} contradicts the target {target}: leave it out")
    model.model = target
    plan = _plan(Path(out), data, made, training)
    _check_folder(plan.out, resume)
    if model.max_num_seqs is None:
        model.max_num_seqs = plan.batch
    llm = open_llm(model, None, quiet=quiet)
    from headstart.distill.run import distil

    with Interruptible() as interrupt:
        done = distil(llm, plan, _teller(quiet), lambda: interrupt.asked)
    if done is None:
        note(f"stopped: add --resume to go on, {out}/work holds what is done")
        raise Exit(130)
    if not quiet:
        alphas = ", ".join(f"{a['alpha']:.3f}" for a in done.after)
        note(f"{out}: alpha {alphas} by draft (before training {done.before[0]['alpha']:.3f}); report.html and README.md are beside it")
        note(f"try it: headstart bench --model {target} --draft {_path(out)}")


def _plan(out: Path, data: DataOptions, made: DraftOptions, training: TrainingOptions) -> Plan:
    """Everything checked before a model is loaded. Raises ConfigError."""
    for option, value, known in (("--kind", made.kind, _KINDS), ("--loss", training.loss, _LOSSES)):
        if value not in known:
            raise ConfigError(f"{option} {value} is not available: {nearest(value, known)}")
    _owners(made)
    integer("--max-tokens", data.max_tokens, 8, 1 << 20)
    integer("--batch", data.batch, 1, 4096)
    integer("--draft-vocab", made.draft_vocab, 16, 1 << 24)
    integer("--unroll", made.unroll, 1, 16)
    number("--learning-rate", training.learning_rate, 0, 1, open_low=True)
    if training.epochs is not None:
        if training.time_budget is not None:
            raise ConfigError("--epochs and --time-budget both say how long to train: leave one of them out")
        number("--epochs", training.epochs, 0, 10_000, open_low=True)
    from headstart.distill.run import Plan
    from headstart.distill.train import Options

    options = Options(
        loss=training.loss,
        rate=training.learning_rate,
        epochs=4.0 if training.epochs is None else training.epochs,
        time_budget=None if training.time_budget is None else _seconds(training.time_budget),
        seed=training.seed,
    )
    return Plan(
        kind=made.kind,
        out=out,
        tokens=_count(data.tokens),
        prompts=tuple(data.prompts),
        exclude=tuple(data.exclude),
        max_tokens=data.max_tokens,
        batch=data.batch,
        seed=training.seed,
        vocab=made.draft_vocab,
        taps=_taps(made.taps),
        passes=made.unroll,
        layers=made.layers,
        draft=made.draft,
        lora=made.lora,
        training=options,
    )


def _owners(made: DraftOptions) -> None:
    """An option of the other kind acts on nothing. Raises ConfigError."""
    given: dict[str, tuple[str, Any]] = {
        "--taps": ("head", made.taps),
        "--draft-vocab": ("head", made.draft_vocab != 8192),
        "--unroll": ("head", made.unroll != 3),
        "--layers": ("model", made.layers),
        "--draft": ("model", made.draft),
        "--lora": ("model", made.lora),
    }
    for option, (kind, value) in given.items():
        if value and made.kind != kind:
            raise ConfigError(f"{option} has no effect with --kind {made.kind}: it belongs to --kind {kind}")
    if made.layers is not None and made.draft is not None:
        raise ConfigError("--layers and --draft both say what to start from: leave one of them out")


def _check_folder(out: Path, resume: bool) -> None:
    """Nothing is overwritten by accident. Raises ConfigError."""
    if resume and not out.exists():
        raise ConfigError(f"--resume: there is no {out}; leave --resume out to begin")
    if not resume and out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out} is not empty: add --resume to go on with it, or choose another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"--out {out} cannot be made: {e.strerror}; name a folder") from None


def _teller(quiet: bool) -> Callable[[str], None]:
    """Says how far it is: one line that changes on a terminal, else a line now and then."""
    said = [0.0]

    def say(text: str) -> None:
        if quiet:
            return
        if terminal(sys.stderr):
            print(f"\r\x1b[2K{text}", end="" if text.endswith("left") else "\n", file=sys.stderr, flush=True)
        elif time.monotonic() - said[0] > _LINE_SECONDS or not text.endswith("left"):
            said[0] = time.monotonic()
            note(text)

    return say


def _path(out: str) -> str:
    return out if "/" in out else f"./{out}"


def _count(text: str) -> int:
    """300k, 2M, 5000. Raises ConfigError."""
    m = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)([kmKM]?)", text.strip())
    value = int(float(m[1]) * {"": 1, "k": 1000, "m": 1_000_000}[m[2].lower()]) if m else 0
    if value < 1:
        raise ConfigError(f"--tokens {text} is not a number of tokens: write 300k or 2M")
    return value


def _seconds(text: str) -> float:
    """90s, 30m, 2h. Raises ConfigError."""
    m = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text.strip())
    value = float(m[1]) * {"s": 1, "m": 60, "h": 3600}[m[2]] if m else 0.0
    if value <= 0:
        raise ConfigError(f"--time-budget {text} is not a time: write 90s, 30m or 2h")
    return value


def _taps(text: str | None) -> tuple[int, ...]:
    """8,18,30. Raises ConfigError."""
    if text is None:
        return ()
    parts = text.split(",")
    if not all(p.strip().isdecimal() for p in parts):
        raise ConfigError(f"--taps {text} must be numbers of layers with commas between, such as 8,18,30")
    return tuple(sorted({int(p) for p in parts}))
