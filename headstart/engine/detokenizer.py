"""From token ids to text, one token at a time, never taking a character back."""

from __future__ import annotations

from typing import Any

from headstart.runtime.tokenizer import decoder

# Tokens of the prompt that are decoded along, so that the first output token is spaced as in the middle of a text.
_CONTEXT = 6


class Detokenizer:
    """Invariant: the pieces returned so far, joined, are the text of the tokens up to `read`; later ones wait for more bytes."""

    def __init__(self, tokenizer: Any, prompt: list[int], skip_special_tokens: bool) -> None:
        self.decode, self.skip = decoder(tokenizer), skip_special_tokens
        self.tokens = prompt[-_CONTEXT:]
        self.prefix, self.read = 0, len(self.tokens)
        self.shown = self._decode(self.tokens)

    def _decode(self, ids: list[int]) -> str:
        return self.decode(ids, self.skip) if ids else ""

    def push(self, token: int) -> str:
        """The text that became certain with this token: empty while a character is incomplete."""
        self.tokens.append(token)
        text = self._decode(self.tokens[self.prefix :])
        if len(text) <= len(self.shown) or text.endswith("�"):
            return ""
        piece = text[len(self.shown) :]
        self.prefix, self.read = self.read, len(self.tokens)
        self.shown = self._decode(self.tokens[self.prefix :])
        return piece

    def flush(self) -> str:
        """What is left at the end: bytes that never became a character, shown as U+FFFD."""
        return self._decode(self.tokens[self.prefix :])[len(self.shown) :]
