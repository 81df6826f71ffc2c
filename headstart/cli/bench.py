"""`headstart bench`: plain decoding and drafts in turns on the same questions; how much faster, and is the output the same?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from headstart.cli.forms import FormOptions, Report, give
from headstart.cli.interrupt import Interruptible
from headstart.cli.options import ModelOptions, draft_alone
from headstart.cli.session import open_llm
from headstart.cli.show import note, unsaid
from headstart.core.checks import integer, number
from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.bench.run import Plan


@dataclass
class ArmOptions:
    """What is compared with plain decoding."""

    draft: Annotated[
        list[str],
        Option(
            "--draft",
            "-d",
            help="What drafts: ngram, a draft model or head (MODEL:int8 or :int4 quantises it), several: suffix,MODEL, or a "
            "speculative_config as JSON. May be repeated: one arm each.",
            metavar="D",
        ),
    ] = field(default_factory=list)
    num_speculative_tokens: Annotated[
        str, Option("--num-speculative-tokens", "-k", help="Drafts per step, or several: 2,4,8.", metavar="K")
    ] = "5"
    adaptive: Annotated[bool, Option("--adaptive/--no-adaptive", help="Draft only as much as pays, or (default) always K tokens.")] = False
    verify: Annotated[str, Option(help="rejection, block or match. All are lossless.", metavar="RULE")] = "rejection"
    draft_temperature: Annotated[float | None, Option(help="Temperature of draft models. Default: the target's.", metavar="T")] = None
    prompt_lookup_max: Annotated[int | None, Option(help="Longest match that ngram looks for.", metavar="N")] = None
    prompt_lookup_min: Annotated[int | None, Option(help="Shortest match that ngram accepts.", metavar="N")] = None
    synthetic_acceptance: Annotated[
        list[float],
        Option(help="An arm whose drafts stand with this probability and cost nothing: what the engine makes of it.", metavar="A"),
    ] = field(default_factory=list)

    def lengths(self) -> list[int]:
        """Draft lengths. Raises ConfigError."""
        return numbers("--num-speculative-tokens", self.num_speculative_tokens, int, 1, 128)

    def configs(self) -> list[dict[str, Any]]:
        """One `speculative_config` for each draft and length. Raises ConfigError."""
        if not self.draft and not self.synthetic_acceptance:
            raise ConfigError(
                "there is nothing to compare with plain decoding: add --draft ngram, --draft MODEL or --synthetic-acceptance A"
            )
        own: dict[str, dict[str, Any]] = {
            "ngram": {"prompt_lookup_max": self.prompt_lookup_max, "prompt_lookup_min": self.prompt_lookup_min},
            "draft_model": {"draft_temperature": self.draft_temperature},
        }
        chosen: list[dict[str, Any]] = [draft_alone(d, ("num_speculative_tokens", "verify", "adaptive")) for d in self.draft]
        if {"method": "none"} in chosen:
            raise ConfigError("--draft none drafts nothing: plain decoding is always one of the arms, leave it out")
        methods = ["draft_model" if "model" in c else c.get("method", "") for c in chosen]
        for method, options in own.items():
            for name, value in options.items():
                if value is not None and method not in methods:
                    raise ConfigError(f"--{name.replace('_', '-')} {value} has no effect: no --draft is of method {method}")
        return [
            {
                **{name: value for name, value in own.get(method, {}).items() if value is not None},
                **c,
                "num_speculative_tokens": k,
                "verify": self.verify,
                "adaptive": self.adaptive,
            }
            for (method, c), k in itertools.product(zip(methods, chosen, strict=True), self.lengths())
        ]

    def synthetic(self) -> list[tuple[float, int]]:
        """(acceptance, draft length) of each synthetic arm. Raises ConfigError."""
        for a in self.synthetic_acceptance:
            number("--synthetic-acceptance", a, 0.0, 1.0)
        return list(itertools.product(self.synthetic_acceptance, self.lengths()))


@dataclass
class WorkOptions:
    """What is asked, and how often."""

    data: Annotated[
        str | None,
        Option("--data", help="Questions as JSON lines: turns (Spec-Bench), conversations (ShareGPT). Default: built in.", metavar="FILE"),
    ] = None
    limit: Annotated[int | None, Option("--limit", help="Only so many questions, all categories in turns.", metavar="N")] = None
    max_tokens: Annotated[int, Option("--max-tokens", help="Longest answer, in tokens.", metavar="N")] = 128
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Always answer at full length.")] = False
    batch: Annotated[str, Option(help="Questions at once, or several sizes: 1,4,16,32.", metavar="B")] = "1"
    temperature: Annotated[str, Option("--temperature", "-t", help="0 is greedy. Or several: 0,0.7.", metavar="T")] = "0"
    top_p: Annotated[float, Option(help="Smallest set of tokens with this probability.", metavar="P")] = 1.0
    top_k: Annotated[int, Option(help="The K likeliest tokens; 0 is off.", metavar="K")] = 0
    min_p: Annotated[float, Option(help="Tokens at least this likely relative to the likeliest.", metavar="P")] = 0.0
    repeats: Annotated[int, Option(help="How often everything is measured.", metavar="N")] = 1
    warmup: Annotated[int, Option(help="Rounds of short answers before measuring.", metavar="N")] = 1
    samples: Annotated[int, Option(help="Samples of each arm for the test of its law, at temperatures above 0.", metavar="N")] = 256
    seed: Annotated[int, Option(help="Of sampling.", metavar="N")] = 0

    def plan(self) -> Plan:
        """The plan of the run, its questions loaded. Raises ConfigError."""
        from headstart.bench.run import Plan
        from headstart.bench.workload import load

        for name, low in (("limit", 1), ("repeats", 1), ("warmup", 0), ("samples", 10)):
            if getattr(self, name) is not None:
                integer(f"--{name}", getattr(self, name), low, 1_000_000)
        params = SamplingParams(
            temperature=0.0,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
        )
        batches = numbers("--batch", self.batch, int, 1, 1024)
        temperatures = numbers("--temperature", self.temperature, float, 0, 1e4)
        return Plan(load(self.data, self.limit), params, batches, temperatures, self.repeats, self.warmup, self.seed)


def bench(*, model: ModelOptions, arms: ArmOptions, work: WorkOptions, form: FormOptions) -> None:
    """Measure drafts against plain decoding on the same questions: speed, acceptance, and whether the output is the same.

    Exit code 1 when it is not.
    """
    configs, synthetic, plan = arms.configs(), arms.synthetic(), work.plan()
    if synthetic and any(t > 0 for t in plan.temperatures) and arms.verify != "match":
        raise ConfigError("--synthetic-acceptance replays the plain answer: it needs --temperature 0 or --verify match")
    if model.max_num_seqs is None:
        model.max_num_seqs = max(*plan.batches, 16 if any(plan.temperatures) else 1)  # the test of the law takes many short samples
    elif model.max_num_seqs < max(plan.batches):
        raise ConfigError(f"--max-num-seqs {model.max_num_seqs} is below --batch {max(plan.batches)}: raise it or leave it out")
    form.check()
    if model.backend != "native":
        return _end(_elsewhere(model, arms, work, plan, form, configs), form)
    llm = open_llm(model, None, quiet=True)

    from headstart.bench.arms import make_arms
    from headstart.bench.report import measure_all
    from headstart.bench.summary import found_notes
    from headstart.forms.table import Progress

    made = make_arms(llm, configs, synthetic, arms.verify)
    if not form.quiet and not form.json:
        for line in unsaid(found_notes(llm, made)):
            note(line)
    with Interruptible() as interrupt, Progress(plan.answers(len(made)), form.quiet) as progress:
        found = measure_all(llm, made, plan, work.data or "built in", work.samples, progress.step, progress.say, lambda: interrupt.asked)
    _end(found, form)


def _elsewhere(model: ModelOptions, arms: ArmOptions, work: WorkOptions, plan: Plan, form: FormOptions, configs: Any) -> dict[str, Any]:
    """On another backend: each arm in an engine of its own. Raises ConfigError on what can be measured in this process only."""
    from headstart.bench.elsewhere import make_arms, measure_all
    from headstart.forms.table import Progress

    where = f"with --backend {model.backend}"
    if arms.synthetic_acceptance:
        raise ConfigError(f"--synthetic-acceptance is not available {where}: it replaces the drafter of the native engine")
    if arms.adaptive:
        raise ConfigError(f"--adaptive is not available {where}: drafts are K tokens in every step, leave it out")
    made = make_arms([{k: v for k, v in c.items() if k != "adaptive"} for c in configs], model.backend)
    with Interruptible() as interrupt, Progress(plan.answers(len(made)), form.quiet) as progress:
        open_ = lambda spec: open_llm(model, spec, quiet=True)  # noqa: E731
        source = work.data or "built in"
        return measure_all(open_, made, plan, source, work.samples, progress.step, progress.say, lambda: interrupt.asked)


def _end(found: dict[str, Any], form: FormOptions) -> None:
    """Show it; the exit code is the verdict."""
    _give(found, form)
    if found["interrupted"]:
        raise Exit(130)
    if not found["passed"]:
        raise Exit(1)


def _give(found: dict[str, Any], form: FormOptions) -> None:
    """Write and print what was asked for."""
    from headstart.bench.charts import charts
    from headstart.bench.page import page
    from headstart.bench.sheets import headline
    from headstart.bench.table import tables

    give(found, form, Report("bench", page, charts, headline, tables))


def numbers(option: str, text: str, kind: type, low: float, high: float) -> list[Any]:
    """A list such as 1,4,16: at least one value, none twice. Raises ConfigError."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} {text} must be {'whole numbers' if kind is int else 'numbers'} with commas between, such as 1,4"
        ) from None
    for v in values:
        if kind is int:
            integer(option, v, int(low), int(high))
        else:
            number(option, v, low, high)
    if len(set(values)) < len(values):
        raise ConfigError(f"{option} {text} names a value twice")
    return values
