"""What headstart's worker uses of vLLM, acted out without a model: the next token is a function of the last one.

Tokens of the prompt say what else happens: see `v1/engine/llm_engine.py`. It prints on standard output, as vLLM does.
"""

from vllm.sampling_params import SamplingParams

__all__ = ["SamplingParams"]
__version__ = "0.32.0"
print("fake vLLM greets on standard output")
