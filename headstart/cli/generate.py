"""`headstart generate`: complete prompts, with drafts or without, or both one after the other (`--compare`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from headstart.cli.compare import compare
from headstart.cli.document import document, write
from headstart.cli.options import ModelOptions, SamplingOptions, SpeculationOptions
from headstart.cli.prompts import gather, read_text
from headstart.cli.session import Messages, as_messages, drafts, open_llm, stream, uses_chat, with_seed
from headstart.cli.show import StreamPrinter, legend, note, summary, terminal
from headstart.core.errors import ConfigError
from headstart.core.outputs import RequestOutput
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.api import LLM


def generate(
    prompts: Annotated[list[str] | None, Argument(help='Prompts. "-", or nothing, reads standard input.', metavar="PROMPT")] = None,
    *,
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    prompt: Annotated[list[str] | None, Option("--prompt", hidden=True)] = None,
    prompt_file: Annotated[
        list[str] | None, Option("--prompt-file", help="A text file is one prompt; .jsonl is one per line.", metavar="FILE")
    ] = None,
    chat: Annotated[
        bool | None, Option("--chat/--raw", help="Answer through the chat template (default if there is one), or complete.")
    ] = None,
    system: Annotated[str | None, Option("--system", help="System prompt.", metavar="TEXT")] = None,
    prediction: Annotated[
        str | None,
        Option("--prediction", help="File with the answer you expect, such as the text to be edited: drafted from.", metavar="FILE"),
    ] = None,
    comparing: Annotated[bool, Option("--compare", help="Run without and with drafts, and show both.")] = False,
    logprobs: Annotated[
        int | None, Option("--logprobs", help="With --json: log probabilities of each token and of the N likeliest.", metavar="N")
    ] = None,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print the text only.")] = False,
) -> None:
    """Complete prompts. Accepted drafts are underlined as the text streams; a pipe gets the text alone."""
    params = sampling.params(temperature=0.0)
    if logprobs is not None:
        if not json:
            raise ConfigError(f"--logprobs {logprobs} has no effect without --json: add --json")
        params = replace(params, logprobs=logprobs)
    if prediction is not None:
        params = replace(params, prediction=read_text("--prediction", prediction))
    config = speculation.config()
    if comparing and prediction is None and (config is None or config.get("method") == "none"):
        raise ConfigError("--compare needs something that drafts: add --draft ngram, --draft MODEL or --prediction FILE")
    if comparing and params.n > 1:
        raise ConfigError(f"--compare runs one completion at a time: leave --n {params.n} out")
    if comparing and model.backend != "native":
        raise ConfigError(
            f"--compare needs drafts that can be turned off for one request, which --backend {model.backend} cannot: "
            "headstart bench --backend vllm compares them"
        )
    texts = gather([*(prompt or []), *(prompts or [])], prompt_file or [])
    if comparing and len(texts) > 1:
        raise ConfigError(f"--compare takes one prompt, not {len(texts)}")
    llm = open_llm(model, config, quiet)
    chatting = uses_chat(llm, chat, system)
    asked = [as_messages(t, system) if chatting else t for t in texts]
    if comparing:
        compare(llm, asked[0], texts[0], with_seed(params), json, quiet)
    elif json:
        _run_many(llm, texts, asked, params, show=False, quiet=True)
    elif len(texts) == 1 and params.n == 1:
        _run_one(llm, asked[0], params, quiet)
    else:
        _run_many(llm, texts, asked, params, show=True, quiet=quiet)


def _run_one(llm: LLM, prompt: str | Messages, params: SamplingParams, quiet: bool) -> None:
    """Stream one completion. Ctrl-C keeps what came and exits with 130."""
    printer = StreamPrinter(sys.stdout, terminal(sys.stdout))
    output, interrupted = stream(llm, prompt, params, printer)
    printer.end()
    if output is not None and not quiet:
        note("")
        if printer.marks and output.outputs[0].origins and drafts(llm, params):
            legend()
        for line in summary([output], drafts(llm, params)):
            note(line)
    if interrupted:
        raise Exit(130)


def _run_many(llm: LLM, texts: list[str], asked: Sequence[str | Messages], params: SamplingParams, show: bool, quiet: bool) -> None:
    """Run prompts together, with a progress bar, and print them in order (or as one document)."""
    chatting = not isinstance(asked[0], str)
    run: Any = llm.chat if chatting else llm.generate
    outputs: list[RequestOutput] = run(asked, params, use_tqdm=not quiet)
    failed = [(i, o.error) for i, o in enumerate(outputs) if o.error]
    if not show:
        write(document(llm, texts, outputs, params))
    else:
        _print_all(texts, outputs)
        if not quiet:
            note("")
            for line in summary(outputs, drafts(llm, params)):
                note(line)
    for i, error in failed:
        note(f"headstart: error: prompt {i + 1} of {len(outputs)}: {error}")
    if failed:
        raise Exit(1)


def _print_all(texts: list[str], outputs: list[RequestOutput]) -> None:
    """Every completion: in a terminal under the beginning of its prompt, in a pipe one after the other."""
    marks = terminal(sys.stdout)
    for i, (text, output) in enumerate(zip(texts, outputs, strict=True)):
        for completion in output.outputs:
            if marks:
                which = f" #{completion.index + 1}" if len(output.outputs) > 1 else ""
                start = " ".join(text.split())
                note(f"[{i + 1}/{len(outputs)}{which}] {start[:70]}{'…' if len(start) > 70 else ''}")
            printer = StreamPrinter(sys.stdout, marks)
            printer.update(completion)
            printer.end()
