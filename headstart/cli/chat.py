"""`headstart chat`: a conversation. Ctrl-C ends the answer; at an empty prompt it ends the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from typer import Option

from headstart.cli.options import ModelOptions, SamplingOptions, SpeculationOptions
from headstart.cli.session import Messages, open_llm, stream, uses_chat
from headstart.cli.show import StreamPrinter, legend, note, summary, terminal
from headstart.core.errors import ConfigError, HeadstartError
from headstart.core.outputs import RequestOutput
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.api import LLM

HELP = """/?      this list        /clear  forget the conversation
/bye    leave            /stats  figures of the last answer and of all
Enter sends, Alt-Enter starts a new line. Ctrl-C ends an answer; at an empty prompt it leaves."""


@dataclass
class Conversation:
    """What was said. Invariant: `messages` holds whole exchanges only, after the system prompt if there is one."""

    llm: LLM
    params: SamplingParams
    system: str | None
    messages: Messages = field(default_factory=list)
    answers: list[RequestOutput] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str) -> None:
        """Answer one turn, streaming. An answer that Ctrl-C ended is kept as far as it came."""
        asked = [*self.messages, {"role": "user", "content": text}]
        printer = StreamPrinter(sys.stdout, terminal(sys.stdout))
        output, _ = stream(self.llm, asked, self.params, printer)
        printer.end()
        if output is not None:
            self.messages = [*asked, {"role": "assistant", "content": output.outputs[0].text}]
            self.answers.append(output)

    def stats(self) -> None:
        """Figures of the last answer and of all of them."""
        if not self.answers:
            note("nothing was said yet")
            return
        note("last answer")
        for line in summary(self.answers[-1:], self.llm.speculation):
            note("  " + line)
        if len(self.answers) > 1:
            note(f"all {len(self.answers)} answers")
            for line in summary(self.answers, self.llm.speculation)[1:]:
                note("  " + line)


def chat(
    *,
    model: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    system: Annotated[str | None, Option("--system", help="System prompt.", metavar="TEXT")] = None,
) -> None:
    """Talk to a model. /? lists what can be typed."""
    params = sampling.params(temperature=0.7)
    if params.n > 1:
        raise ConfigError(f"--n {params.n} has no effect in a conversation: leave it out")
    llm = open_llm(model, speculation.config(), quiet=False)
    uses_chat(llm, True, system)
    talk = Conversation(llm, params, system)
    read = _reader()
    if terminal(sys.stdout):
        if llm.speculation:
            legend()
        note("/? for help, /bye to leave")
    while (text := read()) is not None:
        if not text.strip():
            continue
        if text.startswith("/"):
            if not _command(text.strip(), talk):
                return
            continue
        try:
            talk.ask(text)
        except HeadstartError as e:  # a turn that does not fit must not end the conversation
            note(f"headstart: error: {e} (/clear forgets the conversation)")


def _command(text: str, talk: Conversation) -> bool:
    """Do what a /word says; False when it ends the program."""
    if text in ("/bye", "/exit", "/quit"):
        return False
    if text == "/clear":
        talk.clear()
        note("forgotten")
    elif text == "/stats":
        talk.stats()
    else:
        note(HELP if text in ("/?", "/help") else f"there is no {text.split()[0]}\n{HELP}")
    return True


def _reader() -> Callable[[], str | None]:
    """What reads the next turn; None ends the conversation."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _plain
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    # History stays in memory: what people ask a model is not written to disk unasked.
    session: PromptSession[str] = PromptSession(history=InMemoryHistory(), key_bindings=keys, multiline=True, prompt_continuation="  ")

    def read() -> str | None:
        try:
            return session.prompt("> ")
        except EOFError:
            return None
        except KeyboardInterrupt:
            return "" if session.default_buffer.text else None

    return read


def _plain() -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
