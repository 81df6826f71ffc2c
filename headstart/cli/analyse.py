"""`headstart analyse`: which draft will pay, and how many drafts a step? Drafts are judged on the target's own texts, in large passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from headstart.cli.forms import FormOptions, Report, give
from headstart.cli.interrupt import Interruptible
from headstart.cli.options import ModelOptions, draft_alone
from headstart.cli.session import open_llm
from headstart.cli.show import note
from headstart.core.checks import integer
from headstart.core.errors import ConfigError, ModelError
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.api import LLM
    from headstart.bench.arms import Arm
    from headstart.bench.run import Plan

_AT_ONCE = 8  # texts the target writes together


@dataclass
class DrafterOptions:
    """What is judged."""

    draft: Annotated[
        list[str],
        Option(
            "--draft",
            "-d",
            help="A draft model or head (MODEL:int8 or :int4 quantises it), a lookup method (ngram, suffix, corpus:INDEX), "
            "quantised:int8, or a speculative_config as JSON. Repeat it.",
            metavar="D",
        ),
    ] = field(default_factory=list)
    num_speculative_tokens: Annotated[
        int, Option("--num-speculative-tokens", "-k", help="Longest draft that is looked at.", metavar="K")
    ] = 16
    verify: Annotated[str, Option(help="rejection, block or match: what the speed-up is predicted for.", metavar="RULE")] = "rejection"
    draft_temperature: Annotated[float | None, Option(help="Temperature of draft models. Default: the target's.", metavar="T")] = None
    measure: Annotated[bool, Option("--measure", help="Run the best draft, and put measured beside predicted.")] = False
    measure_all: Annotated[bool, Option("--measure-all", help="Run every draft.")] = False

    def configs(self) -> list[dict[str, Any]]:
        """One `speculative_config` for each draft. Raises ConfigError."""
        if not self.draft:
            raise ConfigError("there is no draft to judge: add --draft ngram, --draft suffix or --draft MODEL")
        integer("--num-speculative-tokens", self.num_speculative_tokens, 1, 128)
        out = []
        for said in self.draft:
            chosen = draft_alone(said, ("num_speculative_tokens", "verify"))
            if chosen.get("method") in ("none", "prediction"):
                raise ConfigError(f"--draft {said} drafts nothing of its own: there is nothing to judge")
            if "adaptive" in chosen:
                raise ConfigError(f"--draft {said}: adaptive is for serving, every draft length is judged here: leave it out")
            if chosen.get("method") == "hybrid":
                raise ConfigError(f"--draft {said} is several drafters: judge each by itself, with a --draft for each")
            if "model" in chosen and self.draft_temperature is not None:
                chosen = {"draft_temperature": self.draft_temperature, **chosen}
            out.append({**chosen, "num_speculative_tokens": self.num_speculative_tokens, "verify": self.verify, "adaptive": False})
        if self.draft_temperature is not None and not any("model" in c for c in out):
            raise ConfigError(f"--draft-temperature {self.draft_temperature} has no effect: no --draft is a model")
        return out


@dataclass
class TextOptions:
    """On what, and how the target writes."""

    data: Annotated[
        str | None,
        Option("--data", help="Questions as JSON lines: turns (Spec-Bench), conversations (ShareGPT) or prompt.", metavar="FILE"),
    ] = None
    answers: Annotated[
        str | None, Option("--answers", help="Answers you have, as JSON lines of prompt and answer: nothing is generated.", metavar="FILE")
    ] = None
    limit: Annotated[int | None, Option("--limit", help="Only so many questions, all categories in turns.", metavar="N")] = None
    max_tokens: Annotated[int, Option("--max-tokens", help="Longest answer, in tokens.", metavar="N")] = 128
    temperature: Annotated[float, Option("--temperature", "-t", help="0 is greedy.", metavar="T")] = 0.0
    top_p: Annotated[float, Option(help="Smallest set of tokens with this probability.", metavar="P")] = 1.0
    top_k: Annotated[int, Option(help="The K likeliest tokens; 0 is off.", metavar="K")] = 0
    min_p: Annotated[float, Option(help="Tokens at least this likely relative to the likeliest.", metavar="P")] = 0.0
    seed: Annotated[int, Option(help="Of sampling.", metavar="N")] = 0

    def plan(self) -> Plan:
        """What the target is asked, its questions loaded. Raises ConfigError."""
        from headstart.bench.run import Plan
        from headstart.bench.workload import load

        if self.limit is not None:
            integer("--limit", self.limit, 1, 1_000_000)
        if self.answers is not None and self.data is not None:
            raise ConfigError("--answers and --data both say on what drafts are judged: leave one of them out")
        options = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")}
        params = SamplingParams(**options)
        questions = load(self.data, self.limit) if self.answers is None else []
        return Plan(questions, params, (1,), (params.temperature,), warmup=1, seed=self.seed)


def analyse(
    target: Annotated[str | None, Argument(help="Target model: directory, GGUF file or hub id.", metavar="TARGET")] = None,
    *,
    model: ModelOptions,
    drafts: DrafterOptions,
    text: TextOptions,
    form: FormOptions,
) -> None:
    """Judge drafts before they run: how often they would stand on what the target writes, what they cost here, which to take.

    headstart analyse TARGET --draft ngram --draft suffix --draft SMALLER --limit 12 --out report

    headstart analyse TARGET --draft SMALLER --temperature 0.7 --measure
    """
    if target is not None:
        if model.model not in (None, target):
            raise ConfigError(f"TARGET {target} and --model {model.model} are two targets: leave one of them out")
        model.model = target
    configs, plan = drafts.configs(), text.plan()
    if text.answers is not None and (drafts.measure or drafts.measure_all):
        raise ConfigError("--measure answers questions anew, with --answers there are none: give --data instead")
    form.check()
    model.max_num_seqs = model.max_num_seqs or _AT_ONCE
    llm = open_llm(model, None, quiet=True)
    say = (lambda _: None) if form.quiet or form.json else note
    arms = _arms(llm, configs, say)
    found = _analysed(llm, arms, plan, text, drafts, form)

    from headstart.analysis.charts import charts
    from headstart.analysis.page import page
    from headstart.analysis.sheets import headline, sheets
    from headstart.forms.table import stdout, table

    def tables(found: Any) -> None:
        console = stdout()
        for line in headline(found):
            console.print(line, markup=False, soft_wrap=True)
        console.print()
        for sheet in sheets(found):
            console.print(table(sheet, console.width))
        for line in found["notes"]:
            console.print(f"note: {line}", markup=False, style="dim", soft_wrap=True)

    give(found, form, Report("analysis", page, charts, headline, tables))
    if found["interrupted"]:
        raise Exit(130)


def _arms(llm: LLM, configs: list[dict[str, Any]], say: Callable[[str], None]) -> list[Arm]:
    """The drafters, loaded; how their vocabularies relate to the target's is said first. Raises ConfigError, ModelError."""
    from headstart.analysis.compat import described
    from headstart.bench.arms import make_arms

    words: dict[str, str] = {}
    for config in configs:
        if config.get("model") and config["model"] not in words:
            words[config["model"]] = described(llm.get_tokenizer(), config["model"], config.get("revision"))
            say(f"draft {config['model']}: {words[config['model']]}")
    try:
        arms = [replace(a, name=a.draft) for a in make_arms(llm, configs)[1:]]
    except ModelError as e:
        other = next((f"; {m} has {w}" for m, w in words.items() if m in str(e) and w.startswith("another")), "")
        raise ModelError(f"{e}{other}") from None
    for arm in arms:
        arm.notes += [f"vocabulary: {words[arm.model]}"] if arm.model in words else []
    twice = next((a.draft for a in arms if sum(b.draft == a.draft for b in arms) > 1), None)
    if twice:
        raise ConfigError(f"two drafts are called {twice!r}: give each once, and checkpoints folders of different names")
    return arms


def _analysed(llm: LLM, arms: list[Arm], plan: Plan, text: TextOptions, drafts: DrafterOptions, form: FormOptions) -> dict[str, Any]:
    """All stages in their order: texts, scores, costs, predictions, and what is measured if that was asked for."""
    from headstart.analysis.costs import Costs, measure_draft, measure_steps
    from headstart.analysis.document import Analysis, compare, document
    from headstart.analysis.measure import measure
    from headstart.analysis.score import score
    from headstart.analysis.trajectory import generate, load
    from headstart.bench.summary import found_notes
    from headstart.forms.table import Progress

    longest, params, interrupted = drafts.num_speculative_tokens, plan.params, False
    measured = drafts.measure or drafts.measure_all
    runs = (1 + len(arms) if drafts.measure_all else 2) if measured else 0
    with Interruptible() as interrupt, Progress(plan.answers(1 + runs), form.quiet) as progress:
        stop = lambda: interrupt.asked  # noqa: E731
        progress.say("answers")
        if text.answers is not None:
            texts = load(llm, text.answers, text.limit, text.max_tokens)
        else:
            at_once = min(_AT_ONCE, len(plan.questions), llm.config.max_num_seqs)
            texts, interrupted = generate(llm, replace(plan, batches=(at_once,)), progress.step, stop)
        if not texts:
            raise ConfigError("nothing was written before the run was ended: let it run longer, or take fewer questions by --limit")
        progress.say("scores")
        truths, scores = score(llm, [a.drafter for a in arms], texts, params, longest, stop)
        progress.say("costs")
        steps = measure_steps(llm, texts, params, drafts.verify, longest, stop)
        costs = Costs(steps)
        for arm in arms:
            costs.drafts[arm.draft] = measure_draft(llm, arm, texts[len(texts) // 2], params, longest, costs, stop)
        found_texts = texts[: len(truths)]
        whole = Analysis(found_texts, truths, arms, scores, costs, params, drafts.verify, longest)
        found = document(llm, whole, text.answers or text.data or "built in", found_notes(llm, arms), interrupted or stop())
        if measured and not found["interrupted"]:
            progress.say("answers")
            chosen = found["ranking"] if drafts.measure_all else found["ranking"][:1]
            ks = {d["name"]: d["best_k"] for d in found["drafters"]}
            ready = [replace(a, k=ks[a.draft], name=f"{a.draft} k={ks[a.draft]}") for a in arms if a.draft in chosen]
            compare(found, measure(llm, ready, plan, progress.step, stop))
            found["interrupted"] |= stop()
    return found
