"""Any other decoder of transformers: its own module code, with attention over our paged cache.

transformers lets attention be exchanged by name. Ours writes the keys and values of the rows to their slots and reads those of each
sequence back, so a pass may hold rows of many sequences, and what a rejected draft wrote is never read. Everything else (embeddings,
positions, norms, experts) is transformers' code. Whether a model truly needs nothing but keys and values is tried out at load.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headstart.core.errors import ModelError, first_line
from headstart.ops.attention import Batch, KVCache, Layout, Span, attend
from headstart.ops.linear import pack
from headstart.ops.quant import quantise

NAME = "headstart"
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_LAYERS = ("full_attention", "sliding_attention", "attention")  # kinds of layers that keep nothing but keys and values
# What attention may be told that changes nothing here.
_HARMLESS = (
    "position_ids",
    "position_embeddings",
    "is_causal",
    "output_attentions",
    "use_cache",
    "cache_position",
    "layer_idx",
    "training",
)
_TRIAL = 12  # tokens of the trial at load, fed as 5 + 1 + 6


@dataclass(frozen=True)
class Limits:
    """What the engine asks of a model's config."""

    vocab_size: int
    max_len: int


@dataclass(frozen=True)
class _Kept:
    """What one layer keeps of a token, as seen in a first pass."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


def refusal(config: Any) -> str | None:
    """Why a model of transformers cannot run here, as far as its config and class tell; None if nothing speaks against it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    if config.is_encoder_decoder:
        return "it is an encoder-decoder; only decoders are supported"
    cls = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if cls is None:
        return "transformers has no causal language model of this type"
    if getattr(cls, "_is_stateful", False):
        return "it keeps a recurrent state, which cannot be taken back when drafts are rejected"
    kinds = getattr(text, "layer_types", None) or []
    other = next((k for k in kinds if k not in _LAYERS), None)
    if other is not None:
        return f"its layers of kind {other!r} keep more than keys and values, which cannot be taken back when drafts are rejected"
    return None


class HFDecoder:
    """A causal LM of transformers. `forward` is a function of its arguments and the cache only."""

    parameters: int = 0
    weight_bytes: int = 0

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, quantization: str | None = None) -> None:
        self.dtype, self.device = dtype, device
        self._now: tuple[Batch, KVCache] | None = None
        self.module: Any
        self.module, config = _load(folder, dtype)
        self.module.to(device)
        weights = {id(p): p for p in self.module.parameters()}.values()
        self.parameters, self.weight_bytes = sum(p.numel() for p in weights), sum(p.nbytes for p in weights)
        self.config = Limits(self.module.get_output_embeddings().weight.shape[0], _max_len(config, folder))
        self._takes_rows = "logits_to_keep" in _arguments(self.module.forward)
        self._kept: dict[int, _Kept] = {}
        self.window: int | None = None
        try:
            with torch.inference_mode():
                self._try_out(config, quantization)
        except Exception as e:  # code of hundreds of families: whatever it raises means that it does not run here
            said = str(e) if isinstance(e, ModelError) else f"{type(e).__name__}: {first_line(e)}"
            raise ModelError(f"{folder}: model_type {config.model_type!r} does not run over a paged cache: {said}") from None

    def new_cache(self, slots: int, local_slots: int | None = None) -> KVCache:
        """A cache of keys and values with room for `slots` tokens, in sliding layers for `local_slots` if that is given."""
        cache = KVCache(0, 0, 0, 0, self.dtype, self.device)
        for kept in self._kept.values():
            count = slots if kept.window is None or local_slots is None else local_slots
            cache.keys.append(torch.empty((count, kept.kv_heads, kept.key_dim), dtype=self.dtype, device=self.device))
            cache.values.append(torch.empty((count, kept.kv_heads, kept.value_dim), dtype=self.dtype, device=self.device))
        return cache

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(k.kv_heads * (k.key_dim + k.value_dim) for k in self._kept.values()) * self.dtype.itemsize

    @property
    def local_kv_bytes_per_token(self) -> int:
        sliding = [k for k in self._kept.values() if k.window is not None]
        return sum(k.kv_heads * (k.key_dim + k.value_dim) for k in sliding) * self.dtype.itemsize

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Logits [L, vocab_size] of the rows `batch.logit_rows`; writes the keys and values of all R rows."""
        self._now = batch, cache
        rows = batch.logit_rows
        wanted = {"logits_to_keep": rows} if self._takes_rows and rows is not None else {}
        try:
            logits = self.module(input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False, **wanted).logits[0]
        finally:
            self._now = None
        return logits if rows is None or wanted else logits[rows]

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None, cap: float | None
    ) -> Tensor:
        """One layer's attention: [1, heads, R, d] to [1, R, heads, d]."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        layer = list(self._kept).index(module.layer_idx) if self._now is not None else -1
        if layer < 0:  # the first pass, without a cache: every row of one text is there
            self._kept[module.layer_idx] = _Kept(k.shape[1], k.shape[2], v.shape[2], window)
            return v.repeat_interleave(q.shape[1] // v.shape[1], 1)[None]
        assert self._now is not None
        batch, cache = self._now
        layout = batch.local if window is not None and batch.local is not None else batch
        cache.write(layer, layout.slots, k, v)
        return attend(q, cache, layer, layout, scale, cap).view(1, len(q), q.shape[1], -1)

    def _try_out(self, config: Any, quantization: str | None) -> None:
        """Exchange attention, learn what layers keep, and compare with transformers' own pass. Raises ModelError where they differ."""
        ids = torch.arange(_TRIAL, device=self.device) * 7919 % self.config.vocab_size
        wanted = self.module(input_ids=ids[None], use_cache=False).logits[0]
        self._exchange_attention()
        self.module(input_ids=ids[None], position_ids=torch.arange(_TRIAL, device=self.device)[None], use_cache=False)
        if not self._kept:
            raise ModelError("its attention does not go through transformers' attention interface")
        self._kept = dict(sorted(self._kept.items()))
        windows = {k.window for k in self._kept.values() if k.window is not None}
        said = "sliding_attention" in (getattr(config.get_text_config(), "layer_types", None) or [])
        if len(windows) > 1 or (said and not windows):
            raise ModelError(f"its layers have windows of {sorted(windows) or 'unknown'} tokens, one known width is supported")
        self.window = windows.pop() if windows else None
        self._pack(quantization)
        self._check(ids, wanted, quantization)

    def _exchange_attention(self) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, _attention)
        self.module.set_attn_implementation(NAME)
        for module in self.module.modules():
            if getattr(module, "layer_idx", None) is not None:
                module.headstart = self

    def _pack(self, quantization: str | None) -> None:
        """Matrices packed for the processor, as in the native decoder; those of the vocabulary are never quantised."""
        head = self.module.get_output_embeddings()
        tied = head is not None and head.weight is getattr(self.module.get_input_embeddings(), "weight", None)
        for module in self.module.modules():
            if type(module) is not nn.Linear:
                continue
            weight = module.weight.detach()
            if quantization is not None and module is not head:
                self.weight_bytes -= weight.nbytes
                small = quantise(weight, quantization)
                self.weight_bytes += small.nbytes
                product = pack(small, module.bias, self.dtype)
            else:
                product = pack(weight, module.bias)
            module.forward = _rows(product)  # type: ignore[method-assign]
            if not (module is head and tied):
                module.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)  # the packed form has taken its place

    def _check(self, ids: Tensor, wanted: Tensor, quantization: str | None) -> None:
        """Feed a text in pieces, over wrong drafts: a model that needs more than keys and values gives other logits than in one pass."""
        cache = self.new_cache(_TRIAL)
        got = []
        for start, stop, wrong in ((0, 5, 0), (5, 8, 3), (5, 6, 0), (6, 12, 0)):
            fed = ids[start:stop] if not wrong else ids[start:stop].flip(0)
            logits = self.forward(_one_text(fed, start, self.dtype, self.window), cache)
            if not wrong:
                got.append(logits)
        off = float((torch.cat(got) - wanted).abs().max() / wanted.std())
        exact = {torch.float64: 1e-4, torch.float32: 1e-3}.get(self.dtype, 0.2)
        if not off < (exact if quantization is None else 2.0):
            raise ModelError(f"its logits, fed in pieces, are off by {off:.2g} of their spread: it needs more than keys and values")


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention."""
    asked = next((n for n, v in others.items() if isinstance(v, Tensor) and n not in _HARMLESS), None)
    if asked is not None or getattr(module, "is_causal", True) is False:
        raise ModelError(f"its attention wants {asked or 'to see what comes later'}, which is not supported")
    return module.headstart._attend(module, query, key, value, scaling, sliding_window, softcap), None


def _load(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The module and its config. Raises ModelError for what cannot run here, and for files that do not fit."""
    from transformers import AutoConfig
    from transformers import AutoModelForCausalLM as Auto

    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # a model_type that transformers does not know, fields it does not take
        raise ModelError(f"{folder}: its config is not one that transformers knows ({first_line(e)})") from None
    why = refusal(config)
    if why is not None:
        raise ModelError(f"{folder}: model_type {config.model_type!r} is not supported: {why}")
    # The grouped products of experts know no float64, and round rows differently in passes of other widths.
    config._experts_implementation = "eager"
    try:
        loaded: Any = Auto.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as e:
        raise ModelError(f"{folder}: transformers cannot load it ({type(e).__name__}: {first_line(e)})") from None
    module, info = loaded
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := info.get(what):
            first = sorted(str(n) for n in names)[0]
            raise ModelError(
                f"{folder}: {len(names)} {what.replace('_keys', ' tensors')}, first {first!r}: the weights are of another model"
            )
    return module.eval(), config


def _max_len(config: Any, folder: Path) -> int:
    """The context. longrope's factors are chosen in transformers by the longest row of a pass: up to the original context they are the
    short ones for all, beyond it a draft would change the logits of the rows before it."""
    text = config.get_text_config()
    longest = next((n for name in _LENGTHS if isinstance(n := getattr(text, name, None), int)), None)
    if longest is None:
        raise ModelError(f"{folder}: its config names no longest text ({', '.join(_LENGTHS)})")
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        longest = min(longest, rope.get("original_max_position_embeddings") or longest)
    return longest


def _arguments(function: Any) -> tuple[str, ...]:
    import inspect

    return tuple(inspect.signature(function).parameters)


def _rows(product: Any) -> Any:
    """A product of rows [R, in] as one of any shape [..., in]."""
    return lambda x: product(x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])


def _one_text(tokens: Tensor, start: int, dtype: torch.dtype, window: int | None) -> Batch:
    """Rows start.. of a text whose keys lie in slots 0.. in order."""
    rows, stop, device = len(tokens), start + len(tokens), tokens.device
    at = array("q", range(start, stop))

    def spans(width: int | None) -> list[Span]:
        first = 0 if width is None else max(0, start - width + 1)
        return [Span(slice(0, rows), stop - first, slice(first, stop), dtype, device, width)]

    local = None if window is None else Layout(at, spans(window), device)
    return Batch(at, spans(None), device, ids=array("q", tokens.tolist()), at=at, wanted=array("q", range(rows)), local=local)
