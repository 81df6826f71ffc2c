"""The `headstart` command: the list of commands, and what becomes of errors. Importing it must stay fast: no torch.

Exit codes: 0 done, 1 failed at run time, 2 the input or the usage was wrong, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from typing import Annotated, Any

import typer

import headstart
from headstart.cli import aliases, configfile
from headstart.cli.analyse import analyse
from headstart.cli.bench import bench
from headstart.cli.chat import chat
from headstart.cli.demo import demo
from headstart.cli.distill import distill
from headstart.cli.doctor import doctor
from headstart.cli.generate import generate
from headstart.cli.index import index
from headstart.cli.inspect import inspect
from headstart.cli.models import models
from headstart.cli.options import takes
from headstart.cli.plan import plan
from headstart.cli.serve import serve
from headstart.cli.theory import theory
from headstart.core.errors import ConfigError, EngineError, HeadstartError, nearest
from headstart.core.outputs import RequestError

# Plain help text: rich would double the time of --help.
app = typer.Typer(
    name="headstart",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (generate, chat, serve, bench, analyse, plan, theory, distill, demo, index, models, inspect, doctor):
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(takes(_command))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headstart {headstart.__version__}")
        raise typer.Exit


@app.callback()
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False) -> None:
    """Lossless speculative decoding of large language models.

    \b
    headstart generate --model M --draft ngram "prompt"   complete a prompt
    headstart chat --model M                              talk to a model
    headstart serve M --draft ngram                       OpenAI's API, and a page at /
    headstart bench --model M --draft ngram               does drafting pay, and is the output the same?
    headstart analyse M --draft ngram --draft SMALLER     which draft will pay, and how long should drafts be?
    headstart plan M --device h100                        does it fit, and how fast will it be?
    headstart inspect M --draft SMALLER                   what a model is, and which drafts fit it
    headstart models                                      which families run, and how
    headstart doctor --model M                            which CPU kernels serve, and what a pass costs
    headstart theory --alpha 0.8 --cost 0.05              what drafts should give
    headstart index build --tokenizer M --out I FILES     make a corpus for --draft corpus:I
    headstart doctor --model M                            which CPU kernels serve, and what a pass costs
    headstart demo                                        what speculation does, on a small model
    """


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code. Errors are one line on stderr."""
    try:
        return _invoke(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone: nothing can be said to it, not even by the flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as e:
        return _failed(e)


def main() -> None:
    """Entry point."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a model may write what the terminal's encoding lacks
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _invoke(argv: list[str]) -> int:
    root: Any = typer.main.get_command(app)
    commands = {name: _known(name, command) for name, command in root.commands.items()}
    if argv and argv[0] in commands:
        argv = [argv[0], *_rewrite(argv[1:], commands[argv[0]], commands)]
    elif argv and argv[0] not in ("-h", "--help", "--version"):
        _misplaced(argv[0], commands)
    code = root.main(args=argv, prog_name="headstart", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _rewrite(argv: list[str], known: aliases.Known, commands: Mapping[str, aliases.Known]) -> list[str]:
    if "-h" in argv or "--help" in argv:
        return ["--help"]
    line = aliases.read(argv, known)
    files = [value for name, value in line.options if name == "--config" and value is not None]
    if files:
        line = configfile.merge(line, configfile.load(files[-1], known, commands), known)
    return line.argv()


def _known(name: str, command: Any) -> aliases.Known:
    """What a command takes, read off typer's own description of it."""
    options = [p for p in command.params if p.param_type_name == "option"]
    return aliases.Known(
        command=name,
        names={spelled: p.name for p in options for spelled in (*p.opts, *p.secondary_opts)},
        flags=frozenset(spelled for p in options if p.is_flag for spelled in (*p.opts, *p.secondary_opts)),
        repeated=frozenset(spelled for p in options if p.multiple for spelled in p.opts),
    )


def _misplaced(first: str, commands: Mapping[str, aliases.Known]) -> None:
    """The first word is neither a command nor an option of headstart itself."""
    if first.startswith("-"):
        raise ConfigError(f'{first}: a command comes first, as in headstart generate --model M "prompt"')
    raise ConfigError(f"headstart has no command {first!r}: {nearest(first, commands)}")


def _failed(error: Exception) -> int:
    if os.environ.get("HEADSTART_DEBUG"):
        traceback.print_exc()
    if isinstance(error, HeadstartError):
        _say(str(error))
        return 1 if isinstance(error, (RequestError, EngineError)) else 2
    if isinstance(error, typer.Abort):
        return 130
    if hasattr(error, "format_message"):  # typer's own errors; their class has moved between its versions
        if type(error).__name__ != "NoArgsIsHelpError":
            _say(error.format_message())
        else:
            print(error.format_message())
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, ImportError) and not os.environ.get("HEADSTART_DEBUG"):
        _say(f"{error}: run pip install headstart again, something it needs is missing")
        return 1
    _say(f"{type(error).__name__}: {error} (HEADSTART_DEBUG=1 shows where; please report it)")
    return 1


def _say(message: str) -> None:
    """The one line of an error."""
    print(f"headstart: error: {' '.join(message.split())}", file=sys.stderr)
