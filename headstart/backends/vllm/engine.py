"""The engine of backend="vllm": requests go to a worker process in vLLM's environment, its answers become our outputs.

What vLLM does not tell stays empty: which token was drafted (`origins`) and the text of single tokens (`token_texts`). Its counts of
drafts are per step, but include drafts behind the end of a text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.backends.vllm.installation import Installation, environment, find
from headstart.backends.vllm.process import Worker
from headstart.backends.vllm.refuse import refuse_config, refuse_here, refuse_request
from headstart.backends.vllm.translate import engine_arguments, sampling_arguments
from headstart.core.checks import check_prompt
from headstart.core.config import EngineConfig
from headstart.core.errors import ConfigError, EngineError
from headstart.core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, SpecDecodeMetrics, SpeculativeStats
from headstart.core.params import SamplingParams
from headstart.core.speculation import SpeculativeConfig

log = logging.getLogger("headstart")

_START_SECONDS = 3600.0  # to load and compile: hundreds of GB from a slow disk take their time
_STEP_SECONDS = 900.0  # to say anything: the first step may compile
_CPU_KV_BYTES = 4 << 30  # vLLM would take most of a machine's memory for KV; this is the native engine's limit too
_ENOUGH = {"lookup": 256, "model": 8}  # tokens after which it is odd that nothing was drafted


def start(config: EngineConfig, notes: list[str]) -> VllmEngine:
    """Start vLLM. Raises ConfigError before it loads anything, EngineError when it cannot be started."""
    installation, arguments = prepare(config)
    tokenizer = check_pair(config)
    with contextlib.ExitStack() as stack:
        variables = stack.enter_context(environment(installation, config.hf_token))
        worker = Worker([installation.python, "-u", "-m", "headstart.backends.vllm.worker"], variables)
        stack.callback(worker.close)
        worker.send({"load": arguments})
        answer = worker.receive(_START_SECONDS)
        if "ready" not in answer:
            raise ConfigError(f"vLLM {installation.vllm}: {answer.get('refused', answer)}")
        facts = answer["ready"]
        devices = f"{facts['devices']} {'CPU process' if installation.cpu else 'GPU'}{'s' if facts['devices'] > 1 else ''}"
        target = RemoteTarget(RemoteModel(facts["dtype"], f"vLLM, {devices}"), facts["vocab"], facts["max_model_len"])
        notes.append(f"engine: vLLM {facts['vllm']}, {facts['dtype']} on {devices}, context {target.max_len}")
        notes.append(describe(config.speculative, facts["method"]))
        return VllmEngine(worker, tokenizer, config.speculative, target, stack.pop_all())


def prepare(config: EngineConfig) -> tuple[Installation, dict[str, Any]]:
    """The vLLM to use and its arguments. Raises ConfigError on what cannot be done, before anything loads."""
    refuse_config(config)
    arguments = engine_arguments(config)
    installation = find(config.vllm_python)
    refuse_here(config, installation.cpu)
    if arguments.get("speculative_config", {}).get("method") == "suffix" and not installation.arctic:
        raise ConfigError(f"'arctic': True needs Arctic Inference: {installation.python} -m pip install arctic-inference==0.1.1")
    if installation.cpu and not config.given & {"kv_cache_memory", "gpu_memory_utilization"}:
        arguments.setdefault("kv_cache_memory_bytes", _CPU_KV_BYTES)
    if "seed" in config.given and config.seed is None:
        arguments["seed"] = secrets.randbits(31)  # vLLM's own default gives the same samples after every start
    try:
        json.dumps(arguments)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"backend_options and options must be numbers, text, lists and dictionaries for another process: {e}") from None
    return installation, arguments


def check_pair(config: EngineConfig) -> Any:
    """The target's tokenizer, when a draft model's means the same. Raises ConfigError, ModelError."""
    from headstart.models.head import is_head
    from headstart.runtime.checkpoint import open_checkpoint
    from headstart.runtime.tokenizer import first_difference, load_tokenizer

    spec = config.speculative
    target = open_checkpoint(config.model, config.revision, config.hf_token)
    tokenizer = load_tokenizer(target, config.tokenizer, config.tokenizer_revision, config.hf_token)
    if spec.method != "draft_model" or (spec.backend_options or {}).get("use_heterogeneous_vocab"):
        return tokenizer
    draft = open_checkpoint(spec.model or "", spec.revision, config.hf_token)
    if is_head(draft.config):
        raise ConfigError(f"the draft {spec.model} is a feature-level head: write method='head' ('eagle3' to vLLM)")
    advice = 'use the native engine, or "use_heterogeneous_vocab": True (greedy drafts)'
    different = first_difference(tokenizer, load_tokenizer(draft, token=config.hf_token))
    if different:
        raise ConfigError(f"the draft {spec.model} has another tokenizer: {different}; use a draft with the target's, or {advice}")
    rows = [c.config.get("vocab_size") for c in (target, draft)]
    if rows[0] != rows[1]:
        raise ConfigError(
            f"vLLM wants vocabularies of equal size, padding included: the target has {rows[0]} rows, the draft {rows[1]}; "
            "the native engine takes padded pairs: leave backend='vllm' out, or give both checkpoints as many rows"
        )
    return tokenizer


def describe(spec: SpeculativeConfig, method: str | None) -> str:
    """The start-up line: what drafts."""
    if method is None:
        return "speculation: off"
    inside = " (ours, inside vLLM)" if method == "custom_class" else ""
    what = f"{spec.method}{f' {spec.model}' if spec.model else ''}{inside}"
    return f"speculation: {what}, k={spec.num_speculative_tokens} in every step, verify={spec.verify or 'rejection'}, per-step traces: none"


class RemoteRequest:
    """A request and what has come of it. Invariant: `outputs` has one completion for each of n, growing."""

    def __init__(self, request_id: str, prompt: str | None, ids: list[int], params: SamplingParams, k: int) -> None:
        self.id, self.prompt, self.prompt_ids, self.params = request_id, prompt, ids, params
        self.outputs = [CompletionOutput(i, "", [], logprobs=None if params.logprobs is None else []) for i in range(params.n)]
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.cached, self.error = 0, None
        self.stats = [SpeculativeStats(k) for _ in range(params.n)]
        self.metrics = RequestMetrics(arrival_time=time.monotonic(), seed=params.seed or 0)

    @property
    def finished(self) -> bool:
        return all(c.finish_reason is not None for c in self.outputs)

    def take(self, told: Mapping[str, Any]) -> None:
        """What is new, as the worker tells it."""
        now = time.monotonic()
        for new in told["completions"]:
            old = self.outputs[new["index"]]
            old.text += new["text"]
            old.token_ids += new["token_ids"]
            if new["token_ids"]:
                self.metrics.num_passes += 1
                self.metrics.first_token_time = self.metrics.first_token_time or now
            if old.logprobs is not None and new["logprobs"]:
                old.logprobs += [_scores(entry) for entry in new["logprobs"]]
                old.cumulative_logprob = new["cumulative_logprob"]
            if new["finish_reason"] is not None:
                old.finish_reason, old.stop_reason = new["finish_reason"], new["stop_reason"]
            self._count(new["index"], new["drafts"])
        if told["prompt_logprobs"]:
            self.prompt_logprobs = [None if entry is None else _scores(entry) for entry in told["prompt_logprobs"]]
        self.cached = max(self.cached, told["cached"])
        self.metrics.num_preemptions = max(self.metrics.num_preemptions, told["preemptions"])
        if self.finished:
            self.metrics.finished_time = now

    def _count(self, index: int, drafts: Mapping[str, Any] | None) -> None:
        if drafts is None:
            return
        stats = self.stats[index] = SpeculativeStats(drafts["k"])
        for drafted, accepted in zip(drafts["drafted"], drafts["accepted"], strict=True):
            stats.add(drafted, accepted)
        self.outputs[index].spec_decode_metrics = SpecDecodeMetrics(
            stats.num_spec_tokens, stats.acceptance_histogram, stats.num_draft_tokens, stats.per_step_accepted, stats.per_step_drafted
        )

    def output(self) -> RequestOutput:
        """The request as the user sees it now."""
        self.metrics.speculative_decoding = SpeculativeStats.total(self.stats)
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=self.outputs,
            finished=self.finished,
            metrics=self.metrics,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.cached,
            error=self.error,
        )


def _scores(entry: list[Any]) -> dict[int, Logprob]:
    return {token: Logprob(logprob, rank, text) for token, logprob, rank, text in entry}


@dataclass(frozen=True)
class RemoteModel:
    """What is known of a model that another process holds."""

    dtype: str
    device: str
    parameters: int | None = None


@dataclass(frozen=True)
class RemoteTarget:
    """The target as the rest of headstart asks about it: ids below `vocab`, texts of at most `max_len` tokens."""

    model: RemoteModel
    vocab: int
    max_len: int


class VllmEngine:
    """Invariant: `requests` are those that the worker knows and has not ended."""

    def __init__(self, worker: Worker, tokenizer: Any, spec: SpeculativeConfig, target: RemoteTarget, life: contextlib.ExitStack) -> None:
        self.worker, self.tokenizer, self.spec, self.target, self._life = worker, tokenizer, spec, target, life
        self.drafts = self.spec.num_speculative_tokens or 0
        self.requests: dict[str, RemoteRequest] = {}
        self.closed = False
        self.watch = DraftWatch(self.spec)

    def add(self, request_id: str, prompt: str | None, ids: list[int], params: SamplingParams) -> RemoteRequest:
        """Queue a request. Raises ConfigError when it cannot be served as it is, EngineError when the worker has gone."""
        if self.closed:
            raise EngineError("this engine was shut down: make another LLM")
        refuse_request(params, self.spec)
        ids = self._checked(request_id, ids, params)
        asked = sampling_arguments(params)
        request = RemoteRequest(request_id, prompt, ids, params, self.drafts)
        self.worker.send({"add": request_id, "prompt_token_ids": ids, "params": asked})
        self.requests[request_id] = request
        return request

    def _checked(self, request_id: str, ids: list[int], params: SamplingParams) -> list[int]:
        vocab, limit = self.target.vocab, self.target.max_len
        if request_id in self.requests:
            raise ConfigError(f"request_id={request_id!r} is in use: choose another")
        keep = params.truncate_prompt_tokens
        if keep is not None:
            ids = ids[-(keep if keep > 0 else max(1, limit - (params.max_tokens or 1))) :]
        check_prompt(ids, vocab, limit)
        return list(ids)

    def step(self) -> list[RemoteRequest]:
        """Wait for what the worker says next. Raises ConfigError when vLLM rejects a request, EngineError when it has gone."""
        if not self.requests:
            return []
        message = self.worker.receive(_STEP_SECONDS)
        if "failed" in message:
            self.worker.close()
            raise EngineError(f"vLLM's engine failed: {message['failed']}; {self.worker.last_words()}")
        if "rejected" in message:
            if self.requests.pop(message["rejected"], None) is None:  # aborted on our side meanwhile
                return []
            raise ConfigError(f"vLLM: {message['why']}")
        touched = []
        for told in message["outputs"]:
            request = self.requests.get(told["id"])
            if request is None:  # aborted on our side while this was on its way
                continue
            request.take(told)
            touched.append(request)
            if request.finished:
                del self.requests[request.id]
                self.watch.saw(request)
        return touched

    def abort(self, request_id: str) -> RemoteRequest | None:
        """End a request now. Unknown ids are ignored: it may just have finished."""
        request = self.requests.pop(request_id, None)
        if request is not None:
            for c in request.outputs:
                c.finish_reason = c.finish_reason or "abort"
            with contextlib.suppress(EngineError):  # a worker that has gone does not go on with it
                self.worker.send({"abort": request_id})
        return request

    def forget(self) -> None:
        """Empty the prefix cache; the engine must be idle."""
        self.worker.send({"forget": True})

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def close(self) -> None:
        """End vLLM and everything it has started."""
        self.closed = True
        self._life.close()


class DraftWatch:
    """Says once when speculation was asked for and no draft was ever made."""

    def __init__(self, spec: SpeculativeConfig) -> None:
        self.off = spec.method == "none"
        self.method = spec.method
        self.enough = _ENOUGH["model" if spec.model else "lookup"]
        self.tokens = 0

    def saw(self, request: RemoteRequest) -> None:
        """Count a finished request."""
        if self.off:
            return
        self.tokens += sum(len(c.token_ids) - 1 for c in request.outputs)
        if any(s.num_draft_tokens for s in request.stats):
            self.off = True
        elif self.tokens >= self.enough:
            self.off = True
            log.warning(
                "vLLM has drafted nothing in %d tokens with method=%r: %s",
                self.tokens,
                self.method,
                "the text does not repeat itself, try a draft model" if self.enough == _ENOUGH["lookup"] else "is its context too short?",
            )
