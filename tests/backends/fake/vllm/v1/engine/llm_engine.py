"""Tokens go up by one, two a step when there is speculation (one of two drafts stands).

A prompt that begins with 200 is rejected; 201 makes the engine raise; 202 kills the process; 203 hangs; 204 is never drafted for.
"""

import os
import signal
import sys
import time
from types import SimpleNamespace as Box


class VLLMValidationError(Exception):
    """No ValueError, as in vLLM."""


class LLMEngine:
    def __init__(self, args):
        spec = args.speculative_config
        self.k = spec["num_speculative_tokens"] if spec else 0
        self.vllm_config = Box(
            model_config=Box(max_model_len=args.max_model_len or 64, get_vocab_size=lambda: 288, dtype="torch." + args.dtype),
            parallel_config=Box(world_size=args.tensor_parallel_size, data_parallel_size=1),
            speculative_config=Box(method=spec["method"]) if spec else None,
        )
        self.running = {}
        if args.quantization == "broken":
            raise ValueError("1 validation error for ModelConfig\n  Value error, this cannot be loaded [type=value_error]")
        if args.quantization == "fatal":
            print("RuntimeError: the disk is full", file=sys.stderr)
            os._exit(3)

    @classmethod
    def from_engine_args(cls, args):
        return cls(args)

    def add_request(self, name, prompt, params):
        ids = prompt["prompt_token_ids"]
        if ids[0] == 200:
            raise VLLMValidationError("this one is not wanted")
        for index in range(params.n):
            self.running[name, index] = Box(ids=ids, params=params, out=[], drafted=[], accepted=[], name=name, index=index)

    def abort_request(self, names):
        self.running = {k: v for k, v in self.running.items() if k[0] not in names}

    def reset_prefix_cache(self):
        assert not self.running

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        time.sleep(0.002)
        return [self._one(r) for r in list(self.running.values())]

    def _one(self, r):
        first = r.ids[0]
        if first == 201 and r.out:
            raise RuntimeError("the engine is broken")
        if first == 202 and r.out:
            print("OSError: out of luck", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if first == 203 and r.out:
            time.sleep(60)
        new = [(r.ids + r.out)[-1] + 1]
        if self.k and r.out and first != 204:
            new.append(new[0] + 1)
            r.drafted.append(2)
            r.accepted.append(1)
        new = new[: r.params.max_tokens - len(r.out)]
        r.out += new
        done = len(r.out) == r.params.max_tokens
        if done:
            del self.running[r.name, r.index]
        return Box(
            request_id=r.name,
            outputs=[
                Box(
                    index=r.index,
                    text="".join(f" {t}" for t in new),
                    token_ids=new,
                    cumulative_logprob=-0.5 * len(r.out) if r.params.logprobs is not None else None,
                    logprobs=[{t: Box(logprob=-0.5, rank=1, decoded_token=f" {t}")} for t in new]
                    if r.params.logprobs is not None
                    else None,
                    finish_reason="length" if done else None,
                    stop_reason=None,
                    spec_decode_metrics=Box(num_spec_tokens=self.k, per_step_drafted=r.drafted, per_step_accepted=r.accepted)
                    if done and self.k
                    else None,
                )
            ],
            prompt_logprobs=None,
            num_cached_tokens=1,
            metrics=Box(num_preemptions=0),
        )
