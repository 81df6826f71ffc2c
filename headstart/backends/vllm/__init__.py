"""vLLM as the engine: our configuration and requests in its words, run in its own environment.

`translate` says in vLLM's words what was asked for, `refuse` lists what cannot be said; `installation` finds the Python that has
vLLM; `worker` runs there, `process` and `engine` here; `proposer` is our lookup inside vLLM, `serve` its server.
"""
