"""Runs in vLLM's own environment: vLLM's engine, told what to do by JSON lines on standard input, answering on standard output.

    -> {"load": {arguments of EngineArgs}}
    <- {"ready": {...}} or {"refused": text}
    -> {"add": id, "prompt_token_ids": [...], "params": {arguments of SamplingParams}}, {"abort": id}, {"forget": true}
    <- {"outputs": [...]} after each step, {"rejected": id, "why": text}, {"failed": text} before it ends

The end of standard input ends it, and everything it has started. Needs vLLM and the standard library, nothing of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, TextIO


def main() -> None:
    """Answer until standard input ends."""
    answers = _claim_stdout()

    def say(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    arguments = json.loads(sys.stdin.readline())["load"]
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    try:
        engine = _load(arguments)
        say(ready=_facts(engine))
    except Exception as e:
        traceback.print_exc()
        say(refused=_words(e))
        return
    try:
        _serve(engine, orders, say)
    except Exception as e:
        traceback.print_exc()
        say(failed=_words(e))


def _claim_stdout() -> TextIO:
    """The pipe to headstart; what anybody else prints goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _listen(orders: queue.Queue[dict[str, Any]]) -> None:
    """Queue what is asked for. When headstart has gone, nothing of this may stay: not even in the middle of a step."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(0), signal.SIGKILL)


def _load(arguments: dict[str, Any]) -> Any:
    import dataclasses

    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    known = {f.name for f in dataclasses.fields(EngineArgs)}
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise ValueError(f"vLLM {vllm.__version__} has no argument {unknown[0]!r}")
    made = EngineArgs(**arguments)
    if (arguments.get("speculative_config") or {}).get("rejection_sample_method") == "block":
        config = made.create_engine_config()
        if not config.use_v2_model_runner:
            raise ValueError("verify='block' needs vLLM's V2 model runner, which this configuration does not get: use verify='rejection'")
    return LLMEngine.from_engine_args(made)


def _facts(engine: Any) -> dict[str, Any]:
    """What headstart wants to know of the loaded engine."""
    import vllm

    config = engine.vllm_config
    speculative = config.speculative_config
    return {
        "vllm": vllm.__version__,
        "max_model_len": config.model_config.max_model_len,
        "vocab": config.model_config.get_vocab_size(),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "devices": config.parallel_config.world_size * config.parallel_config.data_parallel_size,
        "method": speculative.method if speculative else None,
    }


def _serve(engine: Any, orders: queue.Queue[dict[str, Any]], say: Any) -> None:
    while True:
        order = _next(orders, wait=not engine.has_unfinished_requests())
        while order is not None:
            _obey(engine, order, say)
            order = _next(orders, wait=False)
        if engine.has_unfinished_requests():
            outputs = [_output(o) for o in engine.step()]
            if outputs:
                say(outputs=outputs)


def _next(orders: queue.Queue[dict[str, Any]], wait: bool) -> dict[str, Any] | None:
    try:
        return orders.get(block=wait)
    except queue.Empty:
        return None


def _obey(engine: Any, order: dict[str, Any], say: Any) -> None:
    if "abort" in order:
        engine.abort_request([order["abort"]])
    elif "forget" in order:
        engine.reset_prefix_cache()
    else:
        try:
            engine.add_request(order["add"], {"prompt_token_ids": order["prompt_token_ids"]}, _params(order["params"]))
        except (
            Exception
        ) as e:  # vLLM's own validation of a request has classes of its own; an engine that has gone says so at the next step
            say(rejected=order["add"], why=_words(e))


def _params(given: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    out = dict(given)
    if "structured_outputs" in out:
        out["structured_outputs"] = StructuredOutputsParams(**out["structured_outputs"])
    if "logit_bias" in out:
        out["logit_bias"] = {int(token): bias for token, bias in out["logit_bias"].items()}
    return SamplingParams(**out, output_kind=RequestOutputKind.DELTA)


def _output(o: Any) -> dict[str, Any]:
    """What is new of one request; log probabilities as [[id, logprob, rank, text], ...] for each token."""
    return {
        "id": o.request_id,
        "completions": [
            {
                "index": c.index,
                "text": c.text,
                "token_ids": list(c.token_ids),
                "cumulative_logprob": c.cumulative_logprob,
                "logprobs": None if c.logprobs is None else [_scores(entry) for entry in c.logprobs],
                "finish_reason": c.finish_reason,
                "stop_reason": c.stop_reason,
                "drafts": _drafts(c.spec_decode_metrics),
            }
            for c in o.outputs
        ],
        "prompt_logprobs": None if not o.prompt_logprobs else [e and _scores(e) for e in o.prompt_logprobs],
        "cached": o.num_cached_tokens or 0,
        "preemptions": getattr(o.metrics, "num_preemptions", 0) or 0,
    }


def _scores(entry: Any) -> list[tuple[int, float, int | None, str | None]]:
    return [(token, scored.logprob, scored.rank, scored.decoded_token) for token, scored in entry.items()]


def _drafts(metrics: Any) -> dict[str, Any] | None:
    if metrics is None:
        return None
    return {"k": metrics.num_spec_tokens, "drafted": metrics.per_step_drafted, "accepted": metrics.per_step_accepted}


def _words(error: BaseException) -> str:
    """What an exception says in one line; of pydantic's, the line that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    telling = next((line for line in lines if line.startswith(("Value error, ", "Assertion failed, "))), lines[0])
    return telling.removeprefix("Value error, ").partition(" [type=")[0]


if __name__ == "__main__":
    main()
