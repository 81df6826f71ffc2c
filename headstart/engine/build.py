"""From an EngineConfig to a running engine: load, measure the room for KV, put the parts together."""

from __future__ import annotations

from typing import Any

import torch

from headstart import draft
from headstart.core import openmp
from headstart.core.blocks import BlockPool
from headstart.core.config import EngineConfig
from headstart.core.errors import ConfigError
from headstart.core.memory import Blocks, blocks_of, pool_blocks, split_blocks
from headstart.core.pace import Pace
from headstart.core.scheduler import Scheduler
from headstart.core.speculation import SpeculativeConfig
from headstart.core.window import WindowPool, local_blocks_needed
from headstart.draft.base import DraftContext, Drafter
from headstart.draft.costs import measured_pace
from headstart.engine.step import Engine
from headstart.models.decoder import Decoder
from headstart.models.hf import HFDecoder
from headstart.ops.device import free_memory, resolve_device, total_memory
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import check_loadable, dtype_for, load_model
from headstart.runtime.runner import Runner
from headstart.runtime.tokenizer import load_tokenizer, real_vocab

# Without a budget from the user: at most this much on a CPU, where memory is shared with everything else.
_CPU_KV_BYTES = 4 << 30


def build_engine(config: EngineConfig, notes: list[str]) -> Engine:
    """Load everything. Start-up lines for the user are appended to `notes`. Raises ModelError, ConfigError."""
    device = resolve_device(config.device)
    checkpoint = open_checkpoint(config.model, config.revision, config.hf_token)
    check_loadable(checkpoint)
    dtype = dtype_for(config.dtype, checkpoint, device)
    notes.extend(checkpoint.notes)
    tokenizer = load_tokenizer(checkpoint, config.tokenizer, config.tokenizer_revision, config.hf_token)
    model = load_model(checkpoint, dtype, device, config.quantization, config.max_model_len)
    vocab = real_vocab(tokenizer, model.config.vocab_size)
    eos = checkpoint.eos_ids or ([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])

    spec = config.speculative
    context = DraftContext(
        tokenizer=tokenizer,
        vocab=vocab,
        dtype=dtype,
        device=device,
        max_rows=config.max_num_batched_tokens,
        target_parameters=model.parameters,
        hf_token=config.hf_token,
        note=notes.append,
        load_target=lambda quantization: load_model(checkpoint, dtype, device, quantization, config.max_model_len),
        target=model,
    )
    drafter = draft.build(spec, context)
    blocks, max_len = _plan_memory(config, model, drafter, device, notes)
    kind = str(dtype).removeprefix("torch.")
    stored = kind if config.quantization is None else f"{config.quantization} ({kind} beside them)"
    notes.append(f"model: {model.parameters / 1e6:.0f}M weights, {stored} on {device}, context {max_len}")
    notes.append(spec.describe())
    if openmp.SPINS and getattr(model, "native", None) is not None:
        notes.append(
            "warning: torch was imported before headstart, so its idle threads spin where the kernels' want to run: "
            f"import headstart first, or set {openmp.VARIABLE}=PASSIVE"
        )
    return assemble(config, model, drafter, blocks, max_len, vocab, tokenizer, eos)


def assemble(
    config: EngineConfig, model: Any, drafter: Drafter, blocks: Blocks, max_len: int, vocab: int, tokenizer: Any = None, eos: Any = ()
) -> Engine:
    """The engine of a loaded model and drafter, with `blocks` KV blocks between them."""
    spec, size, share = config.speculative, config.block_size, config.enable_prefix_caching
    target = Runner(model, blocks.all, size, vocab, max_len, blocks.local)
    drafter.allocate(blocks.all, size)
    drafter.attach(target)
    pool = BlockPool(blocks.all, size, share) if blocks.local is None else WindowPool(blocks.all, size, share, blocks.local, model.window)
    return Engine(
        target,
        drafter,
        pool,
        Scheduler(pool, config.max_num_seqs, config.max_num_batched_tokens),
        tokenizer=tokenizer,
        eos_ids=eos,
        drafts=spec.num_speculative_tokens or 0,
        prediction_drafts=spec.num_prediction_tokens or 0,
        rule=spec.verify,
        pace=_pace(spec, drafter, target, blocks.all),
        seed=config.seed,
        logprobs_mode=config.logprobs_mode,
        max_logprobs=config.max_logprobs,
    )


def _pace(spec: SpeculativeConfig, drafter: Drafter, target: Runner, blocks: int) -> Pace | None:
    """Times are worth measuring where something drafts."""
    if not spec.adaptive:
        return None
    return measured_pace(drafter, target, blocks) if spec.num_speculative_tokens else Pace()


def _plan_memory(
    config: EngineConfig, model: Decoder | HFDecoder, drafter: Drafter, device: torch.device, notes: list[str]
) -> tuple[Blocks, int]:
    """(KV blocks, context limit). The draft's KV is in the budget. Raises ConfigError when a text would not fit."""
    own = model.config.max_len
    if config.max_model_len is not None and config.max_model_len > own:
        raise ConfigError(f"max_model_len={config.max_model_len} is above the model's own context of {own}: lower it")
    max_len = config.max_model_len or own
    per_token = model.kv_bytes_per_token + drafter.kv_bytes_per_token
    if config.kv_cache_memory is not None:
        budget = int(config.kv_cache_memory)
    elif config.gpu_memory_utilization is not None:
        # Weights are loaded by now, so on a CPU what is free bounds what is left of the share.
        budget = min(int(config.gpu_memory_utilization * total_memory(device)) - model.weight_bytes, int(0.95 * free_memory(device)))
    else:
        budget = int(0.9 * free_memory(device)) if device.type == "cuda" else min(_CPU_KV_BYTES, free_memory(device) // 2)
    per_sequence, local = blocks_of(max_len, config.block_size), model.local_kv_bytes_per_token
    local_most = 0 if model.window is None else local_blocks_needed(model.window, config.max_num_batched_tokens, config.block_size)
    if model.window is None or local_most >= per_sequence:  # no text is so long that blocks would come back
        blocks = Blocks(pool_blocks(budget, per_token, config.block_size, max_len, config.max_num_seqs))
    else:
        blocks = split_blocks(budget, per_token - local, local, config.block_size, max_len, local_most, config.max_num_seqs)
    if blocks.all < per_sequence:
        fits = blocks.all * config.block_size
        if config.max_model_len is not None or fits < 2:
            needed = _needed(per_sequence, local_most, per_token, local) * config.block_size
            raise ConfigError(
                f"KV memory of {budget / 2**20:.0f} MiB holds {fits} tokens, max_model_len={max_len} needs "
                f"{needed / 2**20:.0f} MiB: raise kv_cache_memory or lower max_model_len"
            )
        notes.append(f"context limited to {fits} of {own} tokens: that is what {budget / 2**20:.0f} MiB of KV hold")
        max_len = fits
    return blocks, max_len


def _needed(blocks: int, local_most: int, per_token: int, local: int) -> int:
    """Bytes for each slot of a block that one sequence of `blocks` blocks needs."""
    return blocks * (per_token - local) + (min(blocks, local_most) if local_most else blocks) * local
