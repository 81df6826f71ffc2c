"""`headstart demo`: fetch a small model once, then show what drafts do on a text that repeats itself: lookup, and a head if made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from headstart.cli.compare import compare
from headstart.cli.options import ModelOptions, draft_alone
from headstart.cli.session import as_messages, open_llm
from headstart.cli.show import note
from headstart.core.errors import ModelError
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.api import LLM

LOOKUP = "ngram"

# Editing is where lookup pays: most of the answer stands in the question. Our own text.
PROMPT = """Correct the punctuation of this text and repeat it otherwise unchanged:

The harbour master keeps a list of every ship that enters the harbour. Each morning the harbour master reads the list aloud and \
each evening the harbour master writes the names of the new ships at the end of the list. When a ship leaves the harbour the \
harbour master draws a line through its name but the name of the ship stays on the list so that every ship that ever entered the \
harbour can still be found. On the last day of the year the harbour master closes the list and opens a new list for the new year."""


def demo(
    *,
    fetch_only: Annotated[bool, Option("--fetch-only", help="Only fetch the model and print where it is.")] = False,
    draft: Annotated[
        str | None,
        Option(
            "--draft",
            "-d",
            help="What drafts: ngram, a draft of your own (./draft, or ./draft:int8), or several: suffix,./draft. Default: lookup, and the "
            "draft of `make draft` where it is.",
            metavar="D",
        ),
    ] = None,
    max_tokens: Annotated[int, Option("--max-tokens", help="Longest answer, in tokens.", metavar="N")] = 128,
    num_speculative_tokens: Annotated[int, Option("--num-speculative-tokens", "-k", help="Drafts per step.", metavar="K")] = 8,
    dtype: Annotated[str, Option(help="auto, bfloat16, float16, float32 or float64.", metavar="TYPE")] = "auto",
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N.", metavar="DEVICE")] = "auto",
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """SmolLM2-135M-Instruct with and without drafts, side by side: the same text, sooner."""
    from headstart.models.demo import demo_model

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    path = demo_model(note)
    if fetch_only:
        print(path)
        return
    options = ModelOptions(model=str(path), dtype=dtype, device=device)
    k = num_speculative_tokens
    llm = _open(options, draft, k) if draft is not None else _with_what_is_there(options, path, k)
    if not json:
        note(f"\n{PROMPT}")
    compare(llm, as_messages(PROMPT, None), PROMPT, params, json, quiet=False)


def _open(options: ModelOptions, draft: str, k: int) -> LLM:
    return open_llm(options, {**draft_alone(draft, ("num_speculative_tokens",)), "num_speculative_tokens": k}, quiet=False)


def _with_what_is_there(options: ModelOptions, model: Path, k: int) -> LLM:
    """Lookup, together with the draft that `make draft` has made if it can be used; one line says which."""
    from headstart.models.demo import demo_draft

    own, why = demo_draft(model), "`make draft` makes this model a head too, in two to three hours, once (docs/distill.md)"
    if (own / "config.json").exists():
        try:
            llm = open_llm(
                options, {"drafters": ["suffix", {"method": "head", "model": str(own)}], "num_speculative_tokens": k}, quiet=False
            )
        except ModelError as e:
            why = f"{own} cannot be used ({e}): delete it, and `make draft` makes it anew"
        else:
            note(f"drafts: lookup, and the head in {own}")
            return llm
    note(f"drafts: lookup alone; {why}")
    return _open(options, LOOKUP, k)
