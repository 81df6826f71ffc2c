"""Our lookup drafters inside vLLM, through its interface for proposers of others (`method="custom_class"`).

vLLM judges such drafts as point masses, which is lossless whatever chose them. It tells the rows of its batch and no request ids, and
moves rows as requests come and go, so a sequence is known again by its text: one whose beginning is the text of another is followed
on. Equal texts draft alike, so which is taken for which makes no difference. Runs in vLLM's environment.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from typing import Any

import torch

from headstart import draft
from headstart.backends.vllm.translate import OUR_KEY
from headstart.core.params import SamplingParams
from headstart.core.speculation import SpeculativeConfig
from headstart.core.types import Chunk, Sequence
from headstart.draft.base import DraftContext, LookupDrafter
from headstart.draft.guard import Guard

log = logging.getLogger("headstart")


class LookupProposer:
    """Invariant: `known` holds the sequences of the last step; each has committed tokens only."""

    def __init__(self, vllm_config: Any) -> None:
        spec = SpeculativeConfig(**vllm_config.additional_config[OUR_KEY])
        model = vllm_config.model_config
        vocab = model.get_vocab_size()
        context = DraftContext(
            tokenizer=_tokenizer(model) if spec.method != "suffix" else None,
            vocab=vocab,
            dtype=model.dtype,
            device=torch.device("cpu"),
            max_rows=vllm_config.scheduler_config.max_num_batched_tokens,
            target_parameters=0,
            hf_token=None,
            note=log.info,
        )
        drafter = draft.build(spec, context)
        if not isinstance(drafter, LookupDrafter):
            raise ValueError(f"drafter {spec.method!r} is no LookupDrafter: inside vLLM only drafters that look up can run")
        self.drafter = Guard(drafter, vocab)
        self.k = spec.num_speculative_tokens or 0
        self.limit = model.max_model_len
        self.known: list[Sequence] = []
        self.made = 0

    def load_model(self, *_: Any, **__: Any) -> None:
        """vLLM's hook for drafters with weights; there are none."""

    def propose(self, sampled_token_ids: Seq[Seq[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any) -> list[list[int]]:
        """Drafts for every row of the batch, none where a prompt is still being read.

        sampled_token_ids: what this step committed, per row. num_tokens_no_spec: [B] tokens of each row, those included.
        token_ids_cpu: [B, max_model_len].
        """
        chunks: list[Chunk | None] = []
        fresh = list(self.known)
        for row, new in enumerate(sampled_token_ids):
            tokens = token_ids_cpu[row, : num_tokens_no_spec[row]].tolist() if new else []
            chunks.append(self._follow(tokens, len(new), row, fresh) if new else None)
        for seq in fresh:  # gone, or waiting: then it is indexed once more when it comes back
            self.drafter.forget(seq)
        live = [c for c in chunks if c is not None]
        self.known = [c.seq for c in live]
        self.drafter.observe(live)  # a text is indexed as it comes; of a prompt at once what it has
        made = iter(self.drafter.propose(live))
        return [next(made).tokens if c is not None else [] for c in chunks]

    def _follow(self, tokens: list[int], new: int, row: int, fresh: list[Sequence]) -> Chunk:
        """The sequence that this text continues, taken out of `fresh`, or a new one; with how much came and how much to draft."""
        k = max(0, min(self.k, self.limit - len(tokens) - 1))
        likely = sorted(range(len(fresh)), key=lambda i: abs(i - row))  # rows seldom move
        for i in likely:
            seq = fresh[i]
            before = len(seq.tokens)
            if before <= len(tokens) and seq.tokens == tokens[:before]:
                seq.tokens += tokens[before:]
                del fresh[i]
                return Chunk(seq, len(tokens) - before, k)
        self.made += 1
        seq = Sequence(self.made, str(self.made), 0, SamplingParams(), tokens, len(tokens) - new, 0)
        return Chunk(seq, len(tokens), k)


def _tokenizer(model: Any) -> Any:
    from vllm.tokenizers.registry import cached_tokenizer_from_config

    return cached_tokenizer_from_config(model)
