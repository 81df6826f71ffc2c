"""`--config file.toml`: any option, with - or _ in its key; `[generate]` and `[chat]` hold what only that command takes.

Keys go through the same spellings as the command line (aliases.py), and the command line wins.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.cli.aliases import SPEC, Known, Line, Spellings, add, canonical
from headstart.core.errors import ConfigError

_DRAFT_KEYS = ("method", "model", "corpus", "drafters")


def load(path: str, known: Known, commands: Mapping[str, Known]) -> Line:
    """Read a file for one command. Raises ConfigError naming the key and the nearest valid one."""
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"--config {path} cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"--config {path} is not TOML: {e}") from None
    sections = {name: given.pop(name) for name in list(given) if name in commands and isinstance(given[name], dict)}
    for key in given:
        _only_elsewhere(key, known, commands, path)
    # Every section is read, so that a mistake in one is found even when another command runs.
    own = {name: _read(section, commands[name], path) for name, section in sections.items()}
    line = _read(given, known, path)
    return merge(own[known.command], line, known) if known.command in own else line


def _read(table: Mapping[str, Any], known: Known, path: str) -> Line:
    line, said = Line(), Spellings(known)
    for key, value in table.items():
        _put(line, said, known, path, key, value)
    return line


def merge(line: Line, file: Line, known: Known) -> Line:
    """The command line on top of the file: what it sets, by any spelling, replaces the file's."""
    taken = {known.names[name] for name, _ in line.options}
    spec = dict(file.spec)
    if "draft" in taken or any(k in line.spec for k in _DRAFT_KEYS):
        taken.add("draft")
        spec = {k: v for k, v in spec.items() if k not in _DRAFT_KEYS}
    for name in ("num_speculative_tokens", "verify", "adaptive", "draft_temperature", "prompt_lookup_max", "prompt_lookup_min"):
        if name in line.spec:  # the file may have said it as an option of its own, and the other way round
            taken.add(name)
        if name in taken:
            spec.pop(name, None)
    options = [(name, value) for name, value in file.options if known.names[name] not in taken]
    prompts = line.prompts or file.prompts
    return Line([*options, *line.options], prompts, {**spec, **line.spec})


def _put(line: Line, said: Spellings, known: Known, path: str, key: str, value: Any) -> None:
    flag = "--" + key.replace("_", "-")
    try:
        name = canonical(flag, known)
    except ConfigError as e:
        raise ConfigError(f"{path}: {key}: {str(e).replace('--', '').replace(f'headstart {known.command} has', 'there is')}") from None
    if name == "--config":
        raise ConfigError(f"{path}: {key}: a configuration file cannot name another")
    if name in known.flags:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {key} = {value!r} must be true or false")
        off = "--no-" + name.removeprefix("--")
        if value or off in known.names:
            line.options.append((name if value else off, None))
    elif name == SPEC and isinstance(value, Mapping):
        for sub, item in value.items():
            sub = sub.replace("-", "_")
            said.check(f"{SPEC}.{sub}", f"{key}.{sub}", item)
            line.spec[sub] = item
    elif name in known.repeated:
        line.options += [(name, str(item)) for item in (value if isinstance(value, list) else [value])]
    elif isinstance(value, (bool, list, dict)):
        raise ConfigError(f"{path}: {key} = {value!r} must be a number or text")
    else:
        add(line, said, name, key, str(value))


def _only_elsewhere(key: str, known: Known, commands: Mapping[str, Known], path: str) -> None:
    """A key that only another command takes has no effect here: say where it belongs instead of ignoring it."""
    flag = "--" + key.replace("_", "-")
    if _takes(flag, known):
        return
    owner = next((name for name, other in commands.items() if _takes(flag, other)), None)
    if owner:
        raise ConfigError(f"{path}: {key} has no effect in headstart {known.command}: put it under [{owner}]")


def _takes(flag: str, known: Known) -> bool:
    try:
        canonical(flag, known)
    except ConfigError:
        return False
    return True
