"""Plain decoding with every option, written a second time from the definitions: plain numbers, one token at a time, no engine.

What the engine gives with drafts is compared with this. It shares with headstart only the temperature and the filters
(tested on their own) and the counter-based noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import regex
import torch

from headstart.core.params import SamplingParams
from headstart.ops.noise import race
from headstart.ops.sampling import law
from tests.doubles import EchoModel

NEVER = float("-inf")
LETTERS = ["<eos>", *"abcdefghij", *'0123456789{}[]":,.', "Ġ", "ab", "abc", "Ġa", "de", "12", '":', '{"']


def letters_tokenizer():
    """A byte-level tokenizer of `LETTERS`: some strings have several spellings. Id 0 ends a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    merges = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("d", "e"), ("1", "2"), ('"', ":"), ("{", '"')]
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(LETTERS)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", clean_up_tokenization_spaces=False)


def bad_word_ids(tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Each word at the beginning of a text and after a space."""
    return [tokenizer(form, add_special_tokens=False).input_ids for w in words for form in (w, " " + w)]


def matches(pattern: str, tokenizer, eos: Sequence[int]) -> Callable[[list[int], int], bool]:
    """For `shaped`: whether a token keeps the output on the way to a full match of a regular expression."""

    def allowed(output: list[int], token: int) -> bool:
        text = tokenizer.decode(output)
        if token in eos:
            return regex.fullmatch(pattern, text) is not None
        return regex.fullmatch(pattern, text + tokenizer.decode([token]), partial=True) is not None

    return allowed


def shaped(
    row: list[float],
    prompt: list[int],
    output: list[int],
    params: SamplingParams,
    eos: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    allowed: Callable[[list[int], int], bool] | None = None,
) -> list[float]:
    """The logits after every option that looks at the prefix, token by token."""
    out = []
    for token, logit in enumerate(row):
        if allowed is not None and not allowed(output, token):
            logit = NEVER
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logit = NEVER
        for word in bad_words:
            if [*output, token][-len(word) :] == list(word):
                logit = NEVER
        ends = [*(() if params.ignore_eos else eos), *params.stop_token_ids]
        if len(output) < params.min_tokens and token in ends:
            logit = NEVER
        logit += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * output.count(token)
        logit -= params.presence_penalty * (token in output)
        out.append(logit)
    for process in params.logits_processors:
        out = process([*prompt, *output], torch.tensor(out, dtype=torch.float64)).tolist()
    return out


def plain_with_options(
    target: EchoModel, prompt: list[int], params: SamplingParams, seed: int, *, eos: Sequence[int] = (), tokenizer=None, allowed=None
) -> list[int]:
    """Token ids of plain decoding: argmax, or the race keyed by the absolute position."""
    bad = bad_word_ids(tokenizer, params.bad_words) if params.bad_words else []
    output: list[int] = []
    while len(output) < params.max_tokens:
        row = target.logits((*prompt, *output))[: target.vocab].tolist()
        logits = torch.tensor(shaped(row, prompt, output, params, eos, bad, allowed), dtype=torch.float64)
        at = len(prompt) + len(output)
        output.append(int(logits.argmax()) if params.greedy else race(law(logits[None], params)[0], seed, at))
        if (output[-1] in eos and not params.ignore_eos) or output[-1] in params.stop_token_ids:
            break
        if params.stop and len(output) > params.min_tokens:
            new, before = tokenizer.decode(output), len(tokenizer.decode(output[:-1]))
            if any(new.find(s, max(0, before - len(s) + 1)) >= 0 for s in params.stop):
                break
    return output
