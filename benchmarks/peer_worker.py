"""One engine in one mode, driven by lines of JSON: run by peers.py with the interpreter of the engine's own environment.

    python peer_worker.py '{"engine": "transformers", "mode": "plain", "model": DIR, ...}'

Says {"version": ...} when it is loaded; answers {"ids": [...], "tokens": N} with {"ids": [...], "seconds": S}. Knows nothing of headstart
but through the class of that name. Stdlib and the engine only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Headstart:
    def __init__(self, o: dict[str, Any]) -> None:
        from headstart import LLM, SamplingParams

        self.params = SamplingParams
        spec = {"plain": None, "lookup": {"method": "ngram"}, "draft": {"model": o["draft"]}}[o["mode"]]
        if spec:
            spec["num_speculative_tokens"] = o["k"]
        room = {"max_model_len": o["context"], "max_num_seqs": 1, "enable_prefix_caching": False, "enforce_eager": o["eager"]}
        self.llm = LLM(o["model"], dtype=o["dtype"], speculative_config=spec, **room)
        self.version = version("headstart")

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        params = self.params(temperature=0, max_tokens=tokens)
        return self.llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].outputs[0].token_ids


class Transformers:
    def __init__(self, o: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM, logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.torch, self.options = torch, {}
        dtype = getattr(torch, o["dtype"])
        self.model = AutoModelForCausalLM.from_pretrained(o["model"], dtype=dtype)
        if o["mode"] == "lookup":
            self.options = {"prompt_lookup_num_tokens": o["k"], "max_matching_ngram_size": 3}
        elif o["mode"] == "draft":
            assistant = AutoModelForCausalLM.from_pretrained(o["draft"], dtype=dtype)
            assistant.generation_config.num_assistant_tokens = o["k"]
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
            self.options = {"assistant_model": assistant}
        self.version = version("transformers")

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        inputs = self.torch.tensor([ids])
        mask = self.torch.ones_like(inputs)
        out = self.model.generate(inputs, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=0, **self.options)
        return out[0, len(ids) :].tolist()


class OpenVINO:
    def __init__(self, o: dict[str, Any]) -> None:
        import numpy
        import openvino
        import openvino_genai

        self.numpy, self.openvino, self.genai = numpy, openvino, openvino_genai
        # The precision of the others: without these, keys and values are stored in 8 bits and passes may run in 16.
        precision = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[o["dtype"]]
        if precision == "bf16" and "_bf16" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
            precision = "f32"  # on such a processor it refuses bf16 caches, and is fastest in f32
        hints = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "INFERENCE_NUM_THREADS": o["threads"]}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        extra: dict[str, Any] = {"scheduler_config": scheduler}
        self.config = openvino_genai.GenerationConfig()
        self.config.do_sample = False
        self.config.eos_token_id = o["eos"]
        self.config.stop_token_ids = {o["eos"]}
        if o["mode"] == "lookup":
            extra["prompt_lookup"] = True
            self.config.num_assistant_tokens, self.config.max_ngram_size = o["k"], 3
        elif o["mode"] == "draft":
            extra["draft_model"] = openvino_genai.draft_model(o["openvino_draft"], "CPU", **hints)
            self.config.num_assistant_tokens = o["k"]
        self.pipe = openvino_genai.LLMPipeline(o["openvino_model"], "CPU", **extra, **hints)
        self.version = version("openvino-genai")

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        self.config.max_new_tokens = tokens
        prompt = self.openvino.Tensor(self.numpy.array([ids], dtype=self.numpy.int64))
        mask = self.openvino.Tensor(self.numpy.ones((1, len(ids)), dtype=self.numpy.int64))
        return list(self.pipe.generate(self.genai.TokenizedInputs(prompt, mask), self.config).tokens[0])


class VLLM:
    def __init__(self, o: dict[str, Any]) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        from vllm import LLM, SamplingParams

        self.params = SamplingParams
        lookup = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        spec = {"plain": None, "lookup": lookup, "draft": {"method": "draft_model", "model": o["draft"]}}[o["mode"]]
        if spec:
            spec["num_speculative_tokens"] = o["k"]
        room = {"max_model_len": o["context"], "max_num_seqs": 1, "enable_prefix_caching": False, "enforce_eager": o["eager"]}
        self.llm = LLM(o["model"], dtype=o["dtype"], speculative_config=spec, **room)
        self.version = version("vllm-cpu") if _installed("vllm-cpu") else version("vllm")

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        params = self.params(temperature=0, max_tokens=tokens)
        return list(self.llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].outputs[0].token_ids)


class LlamaServer:
    """llama.cpp's own server on a free port of the loopback, ended with this worker."""

    def __init__(self, o: dict[str, Any]) -> None:
        import atexit
        import socket
        import subprocess

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # --no-repack: the repacked kernels crash on some processors when several rows meet quantised weights.
        command = [o["llama_server"], "-m", o["gguf"], "-c", str(o["context"]), "--port", str(port), "-t", str(o["threads"]), "-np", "1"]
        command += ["--no-repack", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
        if o["mode"] == "draft":
            command += ["-md", o["gguf_draft"], "--spec-draft-n-max", str(o["k"])]
        elif o["mode"] != "plain":
            command += ["--spec-type", o["mode"], "--spec-draft-n-max", str(o["k"])]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(server.terminate)
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(240):
            if server.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with code {server.returncode}")
            try:
                self._ask("/health")
                break
            except OSError:
                time.sleep(0.5)
        self.version = self._ask("/props").get("build_info", "")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        from urllib.request import Request, urlopen

        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data, {"Content-Type": "application/json"}), timeout=600) as answer:
            return json.load(answer)

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        greedy = {"temperature": 0, "top_k": 1, "cache_prompt": False, "return_tokens": True}
        return self._ask("/completion", {"prompt": ids, "n_predict": tokens, **greedy})["tokens"]


def _installed(name: str) -> bool:
    try:
        version(name)
    except Exception:
        return False
    return True


ENGINES = {"headstart": Headstart, "transformers": Transformers, "openvino": OpenVINO, "vllm": VLLM, "llama.cpp": LlamaServer}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    options = json.loads(sys.argv[1])
    engine = ENGINES[options["engine"]](options)
    print(json.dumps({"version": engine.version}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        ids = engine.generate(asked["ids"], asked["tokens"])
        print(json.dumps({"ids": [int(i) for i in ids], "seconds": time.perf_counter() - start}), file=out, flush=True)


if __name__ == "__main__":
    main()
