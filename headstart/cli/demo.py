"""`headstart demo`: fetch a small model once, then show what drafting by lookup does on a text that repeats itself."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from headstart.cli.compare import compare
from headstart.cli.options import ModelOptions, split_draft
from headstart.cli.session import as_messages, open_llm
from headstart.cli.show import note
from headstart.core.params import SamplingParams

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
        str, Option("--draft", "-d", help="What drafts: ngram, a draft of your own, or several: suffix,./draft.", metavar="D")
    ] = "ngram",
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
    llm = open_llm(options, {**split_draft(draft, {}), "num_speculative_tokens": num_speculative_tokens}, quiet=False)
    if not json:
        note(f"\n{PROMPT}")
    compare(llm, as_messages(PROMPT, None), PROMPT, params, json, quiet=False)
