"""The same path on a CUDA device: the API takes `device="cuda"` and gives the CPU's greedy text in fp64."""

from __future__ import annotations

import pytest
import torch

from headstart import LLM, SamplingParams
from tests.tiny import write_llama, write_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_cuda_equals_cpu(tmp_path, rule):
    size = len(write_tokenizer(tmp_path).get_vocab())
    write_llama(tmp_path, vocab=size, max_len=256, scale=0.15, eos=2)
    texts = []
    for device in ("cpu", "cuda"):
        spec = {"model": str(tmp_path), "num_speculative_tokens": 3, "verify": rule, "adaptive": False}
        llm = LLM(str(tmp_path), dtype="float64", device=device, kv_cache_memory="64MiB", speculative_config=spec)
        out = llm.generate(["the cat sat", "def"], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        assert all(o.metrics.speculative_decoding.num_accepted_draft_tokens > 0 for o in out)
        texts.append([o.outputs[0].token_ids for o in out])
    assert texts[0] == texts[1]
