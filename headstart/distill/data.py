"""Training text, written by the target with this engine: what it is asked, what it answers, in a file that only grows.

Every text has a number, and what it says is a function of the number and the settings alone. So it does not matter in which order
texts are finished, how many are written at once, or how often the process is killed: the data are the texts 0, 1, 2, … up to
the wanted number of tokens, without doubles, loops and excluded questions.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.core import rand
from headstart.core.errors import ConfigError, ModelError
from headstart.core.params import SamplingParams
from headstart.distill import prompts

if TYPE_CHECKING:
    from headstart.api import LLM
    from headstart.engine.request import Request

TEMPERATURES = (1.0, 0.7, 1.0, 0.0)  # of the answers, in turn: half as served at 1, half sharper
HELD_OUT = 20  # one text of so many is never trained on
_LOOPS = 0.2  # a text that says more than this share of its 8-grams again is left out: it teaches to repeat
_FILE, _SETTINGS = "texts.jsonl", "settings.json"


@dataclass(frozen=True)
class Settings:
    """What decides what the texts say."""

    target: str
    seed: int = 0
    prompt_digest: str = ""  # of the prompts from files; empty where the target makes its own
    temperatures: tuple[float, ...] = TEMPERATURES
    max_tokens: int = 256  # of an answer
    max_prompt: int = 1024  # tokens of a prompt; longer ones are left out


@dataclass(frozen=True)
class Text:
    """One text: `tokens[start:]` were written by the target, and are what a draft learns from."""

    number: int
    tokens: list[int]
    start: int
    temperature: float
    key: str  # prompts.digest of what was asked

    @property
    def written(self) -> int:
        return len(self.tokens) - self.start


class Store:
    """The texts of a folder. Invariant: a line is complete or it is not there; nothing that was written is ever changed."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.path = folder / _FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _same_settings(folder / _SETTINGS, settings)
            self.texts = {t.number: t for t in self._read()}
            self._out = self.path.open("a", encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"{folder} cannot be written ({e.strerror}): choose another --out") from None

    def _read(self) -> Iterator[Text]:
        """Every complete line; a half one, left by a kill, is cut off."""
        if not self.path.exists():
            return
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            os.truncate(self.path, whole)
        for n, line in enumerate(raw[:whole].splitlines(), 1):
            try:
                yield Text(**json.loads(line))
            except (ValueError, TypeError):
                raise ModelError(f"{self.path}, line {n} is damaged: delete the line, its text is then written again") from None

    def add(self, text: Text) -> None:
        """Keep a finished text: it survives whatever happens to the process from here on."""
        self.texts[text.number] = text
        self._out.write(json.dumps(asdict(text)) + "\n")
        self._out.flush()

    def close(self) -> None:
        self._out.close()


def _same_settings(path: Path, settings: Settings) -> None:
    now = json.loads(json.dumps(asdict(settings)))
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name, value in now.items():
            if before.get(name) != value:
                raise ConfigError(f"{path.parent} holds texts made with {name}={before.get(name)!r}, not {value!r}: choose another --out")
    path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Split:
    """Texts to train on and texts to judge by, and how many were left out for what reason."""

    train: list[Text]
    held_out: list[Text]
    left_out: dict[str, int]

    @property
    def tokens(self) -> int:
        return sum(t.written for t in (*self.train, *self.held_out))


def select(texts: dict[int, Text], excluded: frozenset[str], enough: int | None = None) -> tuple[Split, bool]:
    """The texts 0, 1, 2, … that are worth having, up to `enough` written tokens, and whether there are as many.

    Stops at the first number that is missing, so the choice does not depend on which of the later ones happen to be done.
    """
    train: list[Text] = []
    held: list[Text] = []
    seen: set[str] = set()
    left = {"excluded": 0, "double": 0, "loop": 0, "short": 0}
    tokens = number = 0
    while (text := texts.get(number)) is not None and (enough is None or tokens < enough):
        number += 1
        why = _unfit(text, excluded, seen)
        if why:
            left[why] += 1
            continue
        seen.add(text.key)
        tokens += text.written
        (held if int(text.key[:8], 16) % HELD_OUT == 0 else train).append(text)
    if not held and len(train) > 1:
        held.append(train.pop())
    return Split(train, held, left), enough is not None and tokens >= enough


def _unfit(text: Text, excluded: frozenset[str], seen: set[str]) -> str | None:
    if text.key in excluded:
        return "excluded"
    if text.key in seen:
        return "double"
    if text.written < 4:
        return "short"
    return "loop" if repeats(text.tokens[text.start :]) > _LOOPS else None


def repeats(tokens: Sequence[int], n: int = 8) -> float:
    """The share of n-grams that were there before."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass
class _Job:
    """A text on its way: first its user turn, where the target writes that itself, then the answer."""

    number: int
    begun: list[int]  # the prompt of what is being written now
    start: int | None = None  # where the target's own words began; None: they begin after `begun`
    asked: str | None = None  # the user turn, once it is known


class Writer:
    """Writes texts with an engine, many at once. Progress is said through `say`: one line, and whether it is the last."""

    def __init__(self, llm: LLM, store: Store, settings: Settings, given: Sequence[str], excluded: frozenset[str], batch: int) -> None:
        self.llm, self.engine, self.store, self.settings, self.given = llm, llm.engine, store, settings, given
        self.excluded, self.batch = excluded, batch
        self.tokenizer = llm.get_tokenizer()
        self.chat = bool(getattr(self.tokenizer, "chat_template", None))
        self.turn = prompts.user_turn(self.tokenizer) if self.chat else None
        if self.chat and self.turn is None and not given:
            raise ConfigError("the chat template does not show where a user turn ends: give --prompts FILE")
        self.jobs: dict[str, _Job] = {}
        self.next = 0

    def write(self, tokens: int, say: Callable[[str], None], stop: Callable[[], bool] = lambda: False) -> Split:
        """Write until `tokens` are there, the given prompts are used up, or `stop`. What was there before counts."""
        split, enough = select(self.store.texts, self.excluded, tokens)
        begun, at_first = time.monotonic(), split.tokens
        try:
            while not enough and not stop():
                self._refill()
                if not self.jobs:
                    break
                if self._step():
                    split, enough = select(self.store.texts, self.excluded, tokens)
                    say(_progress(split.tokens, tokens, split.tokens - at_first, time.monotonic() - begun))
        finally:
            for request_id in self.jobs:
                self.engine.abort(request_id)
        return split

    def _refill(self) -> None:
        while len(self.jobs) < self.batch:
            number = self.next
            if self.given and number >= len(self.given):
                return
            self.next += 1
            if number not in self.store.texts:
                self._begin(number)

    def _begin(self, number: int) -> None:
        if self.given:
            self._ask(_Job(number, []), self.given[number])
            return
        begin = prompts.opener(self.settings.seed, number)
        if not self.chat:
            begun = self._ids(begin) or [self.tokenizer.bos_token_id or 0]
            self._send(_Job(number, begun, asked=begin), self._answering(number))
            return
        assert self.turn is not None
        before, end = self.turn
        seed = rand.key(self.settings.seed, number, 1)
        params = SamplingParams(temperature=1.0, max_tokens=self.settings.max_tokens, seed=seed, stop=[end], skip_special_tokens=False)
        self._send(_Job(number, self._ids(before + begin), asked=begin), params)

    def _ask(self, job: _Job, question: str) -> None:
        """Let the target answer a user turn, or go on with a text where it knows no turns."""
        if self.chat:
            messages = [{"role": "user", "content": question}]
            ids = self._ids(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        else:
            ids = self._ids(question)
        room = self.engine.target.max_len - self.settings.max_tokens
        if not ids or len(ids) > min(self.settings.max_prompt, room):
            self.store.add(Text(job.number, [], 0, 0.0, prompts.digest(question)))
            return
        self._send(replace(job, begun=ids, asked=question), self._answering(job.number))

    def _answering(self, number: int) -> SamplingParams:
        s = self.settings
        seed = rand.key(s.seed, number, 2)
        return SamplingParams(temperature=s.temperatures[number % len(s.temperatures)], max_tokens=s.max_tokens, seed=seed)

    def _send(self, job: _Job, params: SamplingParams) -> None:
        request_id = f"{job.number}.{0 if job.start is None else 1}"
        self.engine.add(request_id, None, job.begun, params)
        self.jobs[request_id] = job

    def _step(self) -> bool:
        """One pass of the engine; whether a text was finished."""
        before = len(self.store.texts)
        for request in self.engine.step():
            if request.finished:
                self._finished(request)
        return len(self.store.texts) > before

    def _finished(self, request: Request) -> None:
        job = self.jobs.pop(request.id)
        out = request.output().outputs[0]
        if request.error:
            raise ModelError(f"the target could not go on with text {job.number}: {request.error}")
        assert job.asked is not None
        if self.chat and not self.given and job.start is None:  # its own user turn is written: now the answer
            assert self.turn is not None
            asked = (job.asked + out.text.removesuffix(self.turn[1])).strip()
            self._ask(replace(job, start=self._common(job.begun)), asked)
            return
        start = len(job.begun) if job.start is None else job.start
        self.store.add(Text(job.number, job.begun + list(out.token_ids), start, request.params.temperature, prompts.digest(job.asked)))

    def _common(self, begun: list[int]) -> int:
        """Where the words of the user turn begin."""
        assert self.turn is not None
        return min(len(begun), len(self._ids(self.turn[0])))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=not self.chat).input_ids)


def _progress(done: int, wanted: int, fresh: int, seconds: float) -> str:
    rate = fresh / seconds if seconds > 0 else 0.0
    left = f"{(wanted - done) / rate / 60:.0f} min left" if rate > 0 else "some time left"
    return f"data: {done:,} of {wanted:,} tokens, {rate:.0f} a second, {left}"
