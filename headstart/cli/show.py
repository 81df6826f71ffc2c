"""What a terminal shows: text with accepted drafts marked, and summary lines. Text goes to stdout, the rest to stderr.

Drafts are underlined as well as coloured, so the mark survives NO_COLOR and eyes that see no green. A pipe gets plain text.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from headstart.core.outputs import CompletionOutput, RequestOutput, SpeculativeStats

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a model must not drive the terminal: all but tab and newline
_RESET = "\x1b[0m"


def terminal(stream: TextIO) -> bool:
    """Whether a stream shows marks: a terminal that is not a dumb one."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def style(*codes: str) -> str:
    """An SGR sequence; colours (30..37) are left out under NO_COLOR, marks such as underline stay."""
    kept = [c for c in codes if not (os.environ.get("NO_COLOR") and 30 <= int(c) <= 37)]
    return f"\x1b[{';'.join(kept)}m" if kept else ""


def note(text: str) -> None:
    """One quiet line on stderr."""
    if terminal(sys.stderr):
        text = f"{style('2')}{_CONTROL.sub('?', text)}{_RESET}"
    print(text, file=sys.stderr, flush=True)


def unsaid(notes: Iterable[str]) -> list[str]:
    """Of the lines of a start those that `LLM` leaves to us: it says warnings itself."""
    return [line for line in notes if not line.startswith("warning")]


def legend() -> None:
    """The one line on stderr that explains the marks on stdout; nothing where stderr shows none."""
    if terminal(sys.stderr):
        print(f"{style('4', '32')}like this{_RESET}{style('2')}: drafted and accepted{_RESET}", file=sys.stderr, flush=True)


class StreamPrinter:
    """Prints one growing completion. Invariant: what it has written is a prefix of `text`."""

    def __init__(self, stream: TextIO, marks: bool) -> None:
        self.stream, self.marks = stream, marks
        self.written = 0
        self._settled, self._settled_chars = 0, 0  # tokens, and their characters, that are written and cannot change

    def update(self, output: CompletionOutput) -> None:
        """Write what is new in a cumulative output."""
        if not self.marks or not output.token_texts:  # some backends do not say which token was drafted
            self._write(output.text[self.written :], False)
        else:
            at = self._settled_chars
            for i in range(self._settled, len(output.token_texts)):
                piece = output.token_texts[i]
                at += len(piece)
                fresh = piece[len(piece) - (at - self.written) :] if at > self.written else ""
                self._write(fresh, output.origins[i] == "draft")
                if i < len(output.token_texts) - 64:  # the last ones may still grow: characters are held back
                    self._settled, self._settled_chars = i + 1, at
        self.stream.flush()

    def _write(self, text: str, accepted: bool) -> None:
        if not text:
            return
        self.written += len(text)
        if self.marks:
            text = _CONTROL.sub("�", text)
            if accepted:
                text = f"{style('4', '32')}{text}{_RESET}"
        self.stream.write(text)

    def end(self) -> None:
        """End the line."""
        self.stream.write("\n")
        self.stream.flush()


def speed(outputs: Sequence[RequestOutput]) -> tuple[float | None, float | None]:
    """Prompt and generation tokens per second, over the wall time of all outputs; None where there was nothing to time."""
    made = [o for o in outputs if o.metrics.first_token_time is not None and o.metrics.finished_time is not None]
    if not made:
        return None, None
    start = min(o.metrics.first_scheduled_time or o.metrics.arrival_time for o in made)
    first = [o.metrics.first_token_time or 0.0 for o in made]
    end = max(o.metrics.finished_time or 0.0 for o in made)
    prompt = sum(len(o.prompt_token_ids) - o.num_cached_tokens for o in made) / max(max(first) - start, 1e-9)
    after_first = sum(len(c.token_ids) for o in made for c in o.outputs) - sum(len(o.outputs) for o in made)
    return prompt, after_first / max(end - min(first), 1e-9) if after_first > 0 else None


def tokens_of(outputs: Sequence[RequestOutput]) -> int:
    """Generated tokens."""
    return sum(len(c.token_ids) for o in outputs for c in o.outputs)


def per_pass(outputs: Sequence[RequestOutput]) -> float:
    """Tokens per target pass, every pass that gave a token counted."""
    return tokens_of(outputs) / max(sum(o.metrics.num_passes for o in outputs), 1)


def drafts_of(outputs: Sequence[RequestOutput]) -> SpeculativeStats:
    """The speculative counts of several requests together."""
    return SpeculativeStats.total(o.metrics.speculative_decoding for o in outputs)


def rate(value: float | None) -> str:
    """Tokens per second in words."""
    return "-" if value is None else f"{value:.1f} tokens/s"


def positions(stats: SpeculativeStats) -> str:
    """Per-position acceptance in per cent: of the drafts at each position whose predecessors all stood."""
    return " ".join(f"{100 * a:.0f}" for a in stats.acceptance_per_position) + " %" if stats.num_draft_tokens else "-"


def accepted(stats: SpeculativeStats) -> str:
    """accepted/drafted."""
    share = f" ({100 * stats.draft_acceptance_rate:.0f} %)" if stats.num_draft_tokens else ""
    return f"{stats.num_accepted_draft_tokens}/{stats.num_draft_tokens}{share}"


def summary(outputs: Sequence[RequestOutput], speculation: bool) -> list[str]:
    """The lines after the text."""
    prompt, generation = speed(outputs)
    cached = sum(o.num_cached_tokens for o in outputs)
    asked = sum(len(o.prompt_token_ids) for o in outputs)
    lines = [
        f"prompt:      {asked} tokens, {rate(prompt)}" + (f" ({cached} cached)" if cached else ""),
        f"generation:  {tokens_of(outputs)} tokens, {rate(generation)}, {per_pass(outputs):.2f} tokens per pass",
    ]
    if speculation:
        stats = drafts_of(outputs)
        lines.append(f"drafts:      {accepted(stats)} accepted, by position {positions(stats)}")
        if len(stats.drafters) > 1:
            each = (f"{name} {s.num_accepted_draft_tokens}/{s.num_draft_tokens}" for name, s in stats.drafters.items())
            lines.append(f"             {', '.join(each)}")
    return lines
