"""`--compare`: the same prompt without and with drafts in one run, and whether both gave the same tokens."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typer import Exit

from headstart.cli.document import document, one, write
from headstart.cli.session import Messages, start, stream
from headstart.cli.show import StreamPrinter, accepted, drafts_of, legend, note, per_pass, positions, speed, terminal, tokens_of
from headstart.core.outputs import RequestError, RequestOutput
from headstart.core.params import SamplingParams
from headstart.core.speculation import verify_rule

if TYPE_CHECKING:
    from headstart.api import LLM

_WARM_TOKENS = 8


def compare(llm: LLM, prompt: str | Messages, text: str, params: SamplingParams, as_json: bool, quiet: bool) -> None:
    """Run both and print the table (on stdout in a terminal, else on stderr), or one JSON document."""
    _warm_up(llm, prompt, params)
    plain = _arm(llm, prompt, replace(params, num_speculative_tokens=0), "without drafts", as_json, quiet)
    fast = _arm(llm, prompt, params, "with drafts", as_json, quiet)
    same = verdict(llm, params, plain, fast)
    if as_json:
        _, before = speed([plain])
        _, after = speed([fast])
        told = document(llm, [text], [fast], params)
        told["compare"] = {
            "plain": one(text, plain),
            "identical": first_difference(plain, fast) is None,
            "first_difference": first_difference(plain, fast),
            "speedup": after / before if before and after else None,
        }
        write(told)
        return
    note("")
    if terminal(sys.stdout) and not quiet:
        legend()
    out = sys.stdout if terminal(sys.stdout) else sys.stderr
    print("\n".join([*table(plain, fast), f"{'output':<18}{same}"]), file=out, flush=True)


def _warm_up(llm: LLM, prompt: str | Messages, params: SamplingParams) -> None:
    """A few tokens first, so that neither run pays for cold caches and both find the prompt in the prefix cache."""
    for _ in start(llm, prompt, replace(params, max_tokens=min(_WARM_TOKENS, params.max_tokens or _WARM_TOKENS))):
        pass


def _arm(llm: LLM, prompt: str | Messages, params: SamplingParams, title: str, silent: bool, quiet: bool) -> RequestOutput:
    """One of the two runs."""
    printer = None if silent else StreamPrinter(sys.stdout, terminal(sys.stdout))
    if not silent and not quiet:
        note(f"\n-- {title} --")
    output, interrupted = stream(llm, prompt, params, printer)
    if printer is not None:
        printer.end()
    if interrupted:
        raise Exit(130)
    if output is None:
        raise RequestError("the run gave no token")
    return output


def first_difference(plain: RequestOutput, fast: RequestOutput) -> dict[str, Any] | None:
    """Where two outputs part: the token index, and both tokens (None where one has ended). None when they are equal."""
    a, b = plain.outputs[0], fast.outputs[0]
    for i in range(max(len(a.token_ids), len(b.token_ids))):
        left, right = _token(a.token_ids, a.token_texts, i), _token(b.token_ids, b.token_texts, i)
        if left is None or right is None or left["id"] != right["id"]:
            return {"index": i, "plain": left, "speculative": right}
    return None


def _token(ids: list[int], texts: list[str], i: int) -> dict[str, Any] | None:
    return {"id": ids[i], "text": texts[i]} if i < len(ids) else None


def verdict(llm: LLM, params: SamplingParams, plain: RequestOutput, fast: RequestOutput) -> str:
    """In words: identical, or the first difference, and whether one was to be expected."""
    found = first_difference(plain, fast)
    if found is None:
        return f"identical ({len(fast.outputs[0].token_ids)} tokens)"
    left, right = ("the end" if t is None else f"{t['text']!r}" for t in (found["plain"], found["speculative"]))
    where = f"first difference at token {found['index']}: {left} without drafts, {right} with"
    rule = verify_rule(params, llm.config.speculative.verify)
    if params.greedy or rule == "match":
        return where
    return f"{where} (sampled: same law, not same text; --temperature 0 or --verify match give the same text)"


def table(plain: RequestOutput, fast: RequestOutput) -> list[str]:
    """The summary, one figure a line, plain beside speculative."""
    _, before = speed([plain])
    _, after = speed([fast])
    stats = drafts_of([fast])
    gain = f"{after / before:.2f} x" if before and after else "-"
    rows = [
        ("", "without drafts", "with drafts"),
        ("tokens", str(tokens_of([plain])), str(tokens_of([fast]))),
        ("tokens/s", f"{before or 0:.1f}", f"{after or 0:.1f}"),
        ("speed-up", "", gain),
        ("tokens per pass", f"{per_pass([plain]):.2f}", f"{per_pass([fast]):.2f}"),
        ("accepted/drafted", "", accepted(stats)),
    ]
    lines = [f"{name:<18}{a:>14}   {b:>14}".rstrip() for name, a, b in rows]
    lines.append(f"{'by position':<18}{positions(stats)}")
    if before and after and after / before > 1.05 * per_pass([fast]) / per_pass([plain]):
        lines.append("                  (other work disturbed the timing: no speed-up can exceed tokens per pass)")
    return lines
