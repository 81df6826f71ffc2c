"""After a pass that raised, `recover` puts the engine back to where every request can go on, to the very same text."""

from __future__ import annotations

import pytest

from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, check, make_drafter, make_engine, plain


@pytest.mark.parametrize("where", ["forward", "observe"])
def test_passes_that_raise_change_no_text(where: str) -> None:
    target = EchoModel()
    engine = make_engine(target, make_drafter("model", target), random_k=3)
    owner = engine.target if where == "forward" else engine.drafter
    real, calls = getattr(owner, where), 0

    def sometimes(*arguments):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise RuntimeError("a pass that fails")
        return real(*arguments)

    setattr(owner, where, sometimes)
    params = SamplingParams(temperature=0, max_tokens=30)
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10]]
    requests = [engine.add(str(i), None, list(p), params) for i, p in enumerate(prompts)]
    failures = 0
    for _ in range(500):
        if not engine.has_work:
            break
        try:
            engine.step()
        except RuntimeError:
            failures += 1
            engine.recover()
        check(engine)
    assert failures > 3 and not engine.requests and not engine.owner
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output().outputs[0].token_ids == plain(target, prompt, params, 0)
