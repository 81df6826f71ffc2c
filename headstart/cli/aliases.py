"""How options may be spelled: names from vLLM, transformers, llama.cpp, SGLang, MLX and others become ours before typer
looks. What would not mean the same here is refused with the reason; an unknown option names the nearest one.

Knows spellings only. What a value means is decided in options.py.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from typing import Any

from headstart.cli.options import parse_json
from headstart.core.errors import ConfigError
from headstart.core.methods import METHODS

SPEC = "--speculative-config"
METHOD = SPEC + ".method"
LENGTH = "--num-speculative-tokens"

ALIASES: dict[str, str] = {
    **dict.fromkeys(("-m", "--model-path", "-hf", "--hf-repo"), "--model"),
    **dict.fromkeys(("--draft-model", "--spec-model", "--speculative-model", "--assistant-model", "-md", "--model-draft"), "--draft"),
    **dict.fromkeys(("--spec-draft-model", "--speculative-draft-model", "--speculative-draft-model-path"), "--draft"),
    **dict.fromkeys(("-hfd", "--hf-repo-draft", "-dm", "--spec-draft-hf", "-d"), "--draft"),
    **dict.fromkeys(("--spec-method", "--spec-type", "--speculative-algorithm", "--decoding-type"), METHOD),
    **dict.fromkeys(("--spec-tokens", "--num-assistant-tokens", "--num-draft-tokens", "-ndt", "--draft-num-predict", "-k"), LENGTH),
    **dict.fromkeys(("--spec-draft-n-max", "--draft-max", "--draft-n", "--max-draft-len"), LENGTH),
    **dict.fromkeys(("--speculative-num-draft-tokens", "--speculative-num-steps", "--prompt-lookup-num-tokens"), LENGTH),
    **dict.fromkeys(("--ngram-prompt-lookup-max", "--max-matching-ngram-size"), "--prompt-lookup-max"),
    **dict.fromkeys(("--ngram-prompt-lookup-min", "--ngram-match-min"), "--prompt-lookup-min"),
    **dict.fromkeys(("-sc",), SPEC),
    **dict.fromkeys(("--max-new-tokens", "--n-predict", "--predict"), "--max-tokens"),
    **dict.fromkeys(("--temp", "-t"), "--temperature"),
    **dict.fromkeys(("-c", "--ctx-size", "--context-length"), "--max-model-len"),
    **dict.fromkeys(("-s",), "--seed"),
    **dict.fromkeys(("-f", "--file"), "--prompt-file"),
    **dict.fromkeys(("-p",), "--prompt"),
    **dict.fromkeys(("-sys", "--system-prompt"), "--system"),
    **dict.fromkeys(("--kv-cache-memory-bytes",), "--kv-cache-memory"),
    **dict.fromkeys(("--enable-prefix-caching",), "--prefix-caching"),
    **dict.fromkeys(("--no-enable-prefix-caching",), "--no-prefix-caching"),
    **dict.fromkeys(("--draft-temp",), "--draft-temperature"),
    **dict.fromkeys(("-tp", "--tp", "--tp-size"), "--tensor-parallel-size"),
    **dict.fromkeys(("-pp", "--pp", "--pp-size"), "--pipeline-parallel-size"),
    **dict.fromkeys(("-dp", "--dp", "--dp-size"), "--data-parallel-size"),
}

METHOD_NAMES = {  # what the same method is called elsewhere
    "ngram_simple": "ngram",
    "prompt_lookup": "ngram",
    "draft_simple": "draft_model",
    "standalone": "draft_model",
    "draft": "draft_model",
}

_MINIMUM = "short drafts are judged too, there is no minimum: leave it out"
_CONFIDENCE = "drafts are not cut by confidence yet: set --num-speculative-tokens"
_LOSSY = "it accepts drafts the target would not have produced, so the text changes: every rule here is lossless (--verify)"
_TREE = "drafts are one chain, there are no trees: leave it out"
_NGRAM = "set --prompt-lookup-max and --prompt-lookup-min"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("--spec-draft-n-min", "--draft-min"), _MINIMUM),
    **dict.fromkeys(("--spec-draft-p-min", "--draft-p-min", "--assistant-confidence-threshold"), _CONFIDENCE),
    **dict.fromkeys(("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"), _LOSSY),
    **dict.fromkeys(("--speculative-eagle-topk", "--draft-p-split", "--spec-draft-p-split"), _TREE),
    "-n": "it means tokens to some programs and completions to others: write --max-tokens or --n",
    "-ngl": "the whole model runs on --device",
    "--n-gpu-layers": "the whole model runs on --device",
    "--trust-remote-code": "code shipped with a checkpoint is never run",
}


@dataclass
class Line:
    """One command's arguments, in our spelling. `spec` holds `--speculative-config` in all its forms, merged."""

    options: list[tuple[str, str | None]] = field(default_factory=list)  # (name, value; None for a flag)
    prompts: list[str] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)

    def argv(self) -> list[str]:
        """The arguments as typer takes them."""
        out: list[str] = []
        for name, value in self.options:
            out += [name] if value is None else [name, value]
        if self.spec:
            out += [SPEC, json.dumps(self.spec)]
        return [*out, "--", *self.prompts] if self.prompts else out


@dataclass
class Known:
    """What a command knows: the parameter behind each option name, which names take no value, and which may be repeated."""

    command: str
    names: dict[str, str]
    flags: frozenset[str]
    repeated: frozenset[str]


class Spellings:
    """How each option was spelled first, so that two spellings with two values are an error and not a silent choice."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.first: dict[str, tuple[str, Any]] = {}

    def check(self, name: str, spelled: str, value: Any) -> None:
        """Record one spelling. Raises ConfigError when another spelling of the same option had another value."""
        before = self.first.setdefault(name, (spelled, value))
        if name not in self.known.repeated and spelled != before[0] and value != before[1]:
            raise ConfigError(f"{spelled} {value} contradicts {before[0]} {before[1]}: leave one of them out")


def read(argv: list[str], known: Known) -> Line:
    """Rewrite a command's arguments into our spelling. Raises ConfigError on unknown, refused or contradictory options."""
    line, said = Line(), Spellings(known)
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if token == "--":
            line.prompts += rest
            break
        if not token.startswith("-") or token == "-":
            line.prompts.append(token)
            continue
        spelled, equals, inline = token.partition("=") if token.startswith("--") else (token, "", "")
        name = canonical(spelled, known)
        if name in known.flags:
            if equals:
                raise ConfigError(f"{spelled} takes no value: leave ={inline} out")
            line.options.append((name, None))
            continue
        if not equals and not rest:
            raise ConfigError(f"{spelled} needs a value")
        add(line, said, name, spelled, inline if equals else rest.pop(0))
    return line


def add(line: Line, said: Spellings, name: str, spelled: str, value: str) -> None:
    """Put one option with its value on the line."""
    if name == SPEC:
        for key, item in parse_json(value).items():
            said.check(f"{SPEC}.{key}", spelled, item)
            line.spec[key] = item
    elif name.startswith(SPEC + "."):
        key, item = name[len(SPEC) + 1 :], _item(value)
        if key == "method" and isinstance(item, str):
            low = item.strip("[]").lower().replace("-", "_")
            item = METHOD_NAMES.get(low, low if low in METHODS else item)  # the name of a drafter of others stays as it is
        said.check(name, spelled, item)
        line.spec[key] = item
    else:
        said.check(name, spelled, value)
        line.options.append((name, value))


def canonical(spelled: str, known: Known) -> str:
    """Our name of an option. Raises ConfigError when it is refused or unknown here."""
    name = spelled.replace("_", "-") if spelled.startswith("--") and "." not in spelled else spelled
    if name.startswith(SPEC + ".") and SPEC in known.names:
        return SPEC + "." + name[len(SPEC) + 1 :].replace("-", "_")
    if name in REFUSED and name not in known.names:
        raise ConfigError(f"{spelled} is not available: {REFUSED[name]}")
    if name.startswith(("--spec-ngram-", "--speculative-ngram-")):
        raise ConfigError(f"{spelled} is not available: {_NGRAM}")
    name = ALIASES.get(name, name)
    if name in known.names or (name == METHOD and SPEC in known.names):
        return name
    raise ConfigError(f"headstart {known.command} has no option {spelled}: {suggest(spelled, known)}")


def suggest(spelled: str, known: Known) -> str:
    """Words that point from an unknown option to the nearest one of this command."""
    valid = {name: name for name in known.names if name.startswith("--")}
    valid |= {alias: name for alias, name in ALIASES.items() if alias.startswith("--") and name in known.names}
    wanted = spelled.lower().replace("_", "-")
    close = sorted(n for n in valid if len(wanted) > 4 and n.startswith(wanted)) or difflib.get_close_matches(
        wanted, valid, n=1, cutoff=0.6
    )
    return f"did you mean {valid[close[0]]}?" if close else f"see headstart {known.command} --help"


def _item(text: str) -> Any:
    """The value of a dotted key: JSON where it is JSON, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
