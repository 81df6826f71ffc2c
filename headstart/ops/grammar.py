"""Structured output through llguidance: what may come next after the committed tokens and a run of drafts.

A `Grammar` holds committed tokens only; looking along drafts advances the matcher and rolls it back within one call.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.core.errors import ConfigError, first_line
from headstart.core.params import StructuredOutputsParams

# Compiled grammars that are kept: clients repeat their schemas, and may not fill the memory with new ones.
_KEPT = 32


class Grammar:
    """One sequence's place in its grammar. Invariant: the matcher stands after the committed tokens."""

    def __init__(self, matcher: Any, eos_ids: Seq[int]) -> None:
        self.matcher, self.eos_ids = matcher, list(eos_ids)
        self._forced: list[int] | None = None

    def fork(self) -> Grammar:
        """The same grammar for another completion of the request."""
        return Grammar(self.matcher.deep_copy(), self.eos_ids)

    def valid(self, drafts: Seq[int]) -> int:
        """How many leading drafts the grammar takes. An end of text counts, and nothing can follow it."""
        taken = self.matcher.validate_tokens(list(drafts)) if not self.matcher.is_stopped() else 0
        if taken < len(drafts) and drafts[taken] in self.eos_ids and self._ends(drafts[:taken]):
            taken += 1
        return taken

    def allowed(self, drafts: Seq[int], before: int, vocab: int) -> Tensor:
        """bool [len(drafts) + 1 - before, vocab]: what may follow drafts[:before], drafts[:before + 1], ...

        A row behind a draft that the grammar does not take, or behind the end, is never reached: it allows everything.
        """
        out = torch.ones(len(drafts) + 1 - before, vocab, dtype=torch.bool)
        taken = 0
        for i in range(len(drafts) + 1):
            if i >= before:
                out[i - before] = self._next(vocab)
            if i == len(drafts) or self.matcher.is_stopped() or not self.matcher.try_consume_tokens([drafts[i]]):
                break
            taken += 1
        self.matcher.rollback(taken)
        return out

    def forced(self, limit: int) -> list[int]:
        """Tokens that the grammar leaves no choice about, at most `limit`: drafts that cost nothing."""
        if self._forced is None:  # asked for twice a step: how many, and which
            self._forced = [] if self.matcher.is_stopped() else list(self.matcher.compute_ff_tokens())
        return self._forced[:limit]

    def commit(self, tokens: Seq[int]) -> None:
        """Advance over committed tokens. Raises ValueError when the matcher gives up (a grammar beyond its limits)."""
        self._forced = None
        for token in tokens:
            if self.matcher.is_stopped() or token in self.eos_ids:
                return
            if not self.matcher.consume_tokens([token]):
                raise ValueError(f"the grammar cannot be followed further: {self.matcher.get_error()}")

    def _next(self, vocab: int) -> Tensor:
        if self.matcher.is_stopped():
            out = torch.zeros(vocab, dtype=torch.bool)
            out[self.eos_ids] = True
            return out
        bits = np.unpackbits(np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8), count=vocab, bitorder="little")
        return torch.from_numpy(bits).bool()

    def _ends(self, drafts: Seq[int]) -> bool:
        """Whether the text may end after these drafts, all of them valid."""
        self.matcher.consume_tokens(list(drafts))
        ends = self.matcher.is_stopped() or self.matcher.is_accepting()
        self.matcher.rollback(len(drafts))
        return ends


class GrammarCompiler:
    """Makes grammars for one tokenizer, whose table of bytes is built at the first use (about a second)."""

    def __init__(self, tokenizer: Any, vocab: int, eos_ids: Seq[int]) -> None:
        self.tokenizer, self.vocab, self.eos_ids = tokenizer, vocab, list(eos_ids)
        self._table: Any = None
        self._known: OrderedDict[str, Any] = OrderedDict()  # what was wanted -> a matcher at its beginning, the latest last
        self._lock = threading.Lock()  # servers compile off the engine's thread

    def known(self, wanted: StructuredOutputsParams) -> Grammar | None:
        """The grammar at its beginning, if it was compiled lately."""
        with self._lock:
            matcher = self._known.get(repr(wanted))
            if matcher is None:
                return None
            self._known.move_to_end(repr(wanted))
        return Grammar(matcher.deep_copy(), self.eos_ids)

    def compile(self, wanted: StructuredOutputsParams) -> Grammar:
        """A grammar at its beginning. Raises ConfigError with the reason when the schema, expression or grammar is wrong."""
        known = self.known(wanted)
        if known is not None:
            return known
        from llguidance import LLMatcher

        if not self.eos_ids:
            raise ConfigError("structured_outputs needs an end-of-text token, and this model names none: set eos_token_id in its config")
        table = self.table()
        try:
            matcher = LLMatcher(table, _grammar_text(wanted))
            problem = matcher.get_error()
        except Exception as e:  # the library raises ValueError and kinds of its own
            problem = str(e) or type(e).__name__
        if problem:
            raise ConfigError(f"structured_outputs cannot be used: {' '.join(problem.split())[:300]}")
        with self._lock:
            self._known[repr(wanted)] = matcher
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return Grammar(matcher.deep_copy(), self.eos_ids)

    def table(self) -> Any:
        """The tokenizer's table of bytes. Raises ConfigError when there is none to be had."""
        if self._table is None:
            import llguidance.hf

            if self.tokenizer is None:
                raise ConfigError("structured_outputs needs a tokenizer: load the model with one")
            try:
                self._table = llguidance.hf.from_tokenizer(self.tokenizer, n_vocab=self.vocab, eos_token=self.eos_ids)
            except Exception as e:  # tokenizers without the fast form, or of a kind that the library cannot read
                raise ConfigError(f"structured_outputs cannot read this model's tokenizer ({first_line(e)})") from None
        return self._table


def _grammar_text(wanted: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(wanted.grammar)
    if wanted.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(c, ensure_ascii=False) for c in wanted.choice))
    schema = {"type": "object"} if wanted.json_object else wanted.json
    return LLMatcher.grammar_from_json_schema(
        schema if isinstance(schema, str) else json.dumps(schema), defaults={"whitespace_flexible": not wanted.disable_any_whitespace}
    )
