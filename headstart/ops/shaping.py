"""Options that change logits by the prefix of their row: grammar, masks, bias, penalties, the user's own processors.

Row by row, from the committed tokens and the drafts before the row, and from nothing else. There is no state, so a rejected
draft leaves no count behind. The filters of `sampling.py` come after. Order as in vLLM: grammar and allowed ids -> bad words
-> min_tokens -> logit bias -> repetition, frequency, presence penalty -> logits processors.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from headstart.core.errors import first_line
from headstart.core.types import Sequence

_NEVER = float("-inf")


class ProcessorError(ValueError):
    """A logits processor of the user raised, or gave back something that is no row of logits. `row`: where."""

    def __init__(self, row: int, words: str) -> None:
        super().__init__(words)
        self.row = row


def shape(logits: Tensor, seq: Sequence, drafts: Seq[int]) -> Tensor:
    """Logits [R, V] of the last R prefixes of `seq.tokens + drafts`, changed by the options of the sequence.

    R = len(drafts) + 1 for the rows of a verification, 1 for the draft's own next token. Row j comes after
    `drafts[: len(drafts) + 1 - R + j]`. Returns the tensor itself when no option is set. Raises ProcessorError.
    """
    params = seq.params
    if not params.shapes:
        return logits
    before = len(drafts) + 1 - logits.shape[0]  # drafts that row 0 has seen
    out = logits.clone()
    _mask(out, seq, drafts, before)
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=out.device)
        out[:, ids] += torch.tensor(list(params.logit_bias.values()), dtype=out.dtype, device=out.device)
    if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
        _penalise(out, seq, drafts, before)
    for process in params.logits_processors or ():
        for j in range(out.shape[0]):
            out[j] = _processed(process, [*seq.tokens, *drafts[: before + j]], out[j], j)
    return out


def _mask(out: Tensor, seq: Sequence, drafts: Seq[int], before: int) -> None:
    """Forbid, in place, what the options forbid."""
    params, rows = seq.params, range(out.shape[0])
    if seq.grammar is not None:
        out.masked_fill_(~seq.grammar.allowed(drafts, before, out.shape[1]).to(out.device), _NEVER)
    if params.allowed_token_ids is not None:
        forbidden = torch.ones(out.shape[1], dtype=torch.bool, device=out.device)
        forbidden[list(params.allowed_token_ids)] = False
        out.masked_fill_(forbidden, _NEVER)
    for word in seq.bad_words:
        stem, last = list(word[:-1]), word[-1]
        for j in rows:
            written = [*seq.output, *drafts[: before + j]] if stem else []
            if written[len(written) - len(stem) :] == stem:
                out[j, last] = _NEVER
    if params.min_tokens > seq.produced + before:
        ends = [*(() if params.ignore_eos else seq.eos_ids), *(params.stop_token_ids or ())]
        out[: params.min_tokens - seq.produced - before, ends] = _NEVER


def _penalise(out: Tensor, seq: Sequence, drafts: Seq[int], before: int) -> None:
    """Repetition (Keskar et al. 1909.05858; over prompt and output), then frequency and presence (over the output), in place.

    Only the columns of tokens that occur are touched: a text has far fewer of them than a vocabulary.
    """
    params, rows = seq.params, out.shape[0]
    prompt = seq.tokens[: seq.prompt_len] if params.repetition_penalty != 1 else []
    text = torch.tensor([*prompt, *seq.output, *drafts], dtype=torch.int64, device=out.device)
    ids, column = text.unique(return_inverse=True)
    written = column[len(prompt) :]
    done = len(written) - len(drafts) + before  # of them, those that row 0 has seen
    counts = torch.bincount(written[:done], minlength=len(ids)).to(out.dtype).repeat(rows, 1)
    for j, at in enumerate(written[done:].tolist(), start=1):
        counts[j:, at] += 1
    logits, seen = out[:, ids], counts > 0
    if params.repetition_penalty != 1:
        known = seen.clone()
        known[:, column[: len(prompt)]] = True
        weaker = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
        logits = torch.where(known, weaker, logits)
    out[:, ids] = logits - params.frequency_penalty * counts - params.presence_penalty * seen.to(out.dtype)


def _processed(process: object, tokens: list[int], row: Tensor, j: int) -> Tensor:
    name = getattr(process, "__name__", type(process).__name__)
    try:
        out = process(tokens, row.clone())  # type: ignore[operator]
    except Exception as e:  # the user's code may raise anything; it ends this request and no other
        raise ProcessorError(j, f"the logits processor {name} raised {type(e).__name__}: {first_line(e)}") from e
    if not isinstance(out, Tensor) or out.shape != row.shape:
        what = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ProcessorError(j, f"the logits processor {name} gave {what} where a tensor of shape {tuple(row.shape)} is due")
    return out
