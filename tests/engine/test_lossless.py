"""The lossless matrix: token ids of plain decoding, whatever drafts, however it is scheduled.

Greedy under every rule, and `match` at a temperature, must give exactly the ids of an independent plain loop.
"""

from __future__ import annotations

import itertools

import pytest

from headstart.core.params import SamplingParams
from tests.doubles import DRAFTERS, EchoModel, check, expecting, make_drafter, make_engine, plain, run, totals

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8], [1], [5] * 23, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 7, 7]]
LAYOUTS = {
    "roomy": {"block_size": 16, "max_rows": 256, "share": True},
    "block-1": {"block_size": 1, "max_rows": 64, "share": True},
    "chunked": {"block_size": 4, "max_rows": 6, "share": True},
    "no-sharing": {"block_size": 3, "max_rows": 16, "share": False},
    "tight": {"block_size": 4, "max_rows": 32, "blocks": 22, "max_len": 80, "share": True},
}


def cases():
    for kind, layout in itertools.product(DRAFTERS, LAYOUTS):
        for rule, temperature in (("rejection", 0.0), ("block", 0.0), ("match", 0.0), ("match", 1.0)):
            yield pytest.param(kind, layout, rule, temperature, id=f"{kind}-{layout}-{rule}-T{temperature:g}")


@pytest.mark.parametrize(("kind", "layout", "rule", "temperature"), cases())
def test_ids_equal_plain_decoding(kind, layout, rule, temperature):
    target = EchoModel(vocab=30)
    seeds = list(range(100, 100 + len(PROMPTS)))
    params = [SamplingParams(temperature=temperature, max_tokens=40, seed=s) for s in seeds]
    params = [expecting(kind, target, prompt, p) for prompt, p in zip(PROMPTS, params, strict=True)]
    engine = make_engine(target, make_drafter(kind, target), rule=rule, random_k=7, **LAYOUTS[layout])
    outputs = run(engine, PROMPTS, params, steps_between=1)
    for prompt, p, out in zip(PROMPTS, params, outputs, strict=True):
        assert out.outputs[0].token_ids == plain(target, prompt, p, p.seed)
        assert out.outputs[0].finish_reason == "length"
    drafted, accepted = totals(outputs)
    if kind == "none":
        assert drafted == 0
    elif kind == "wrong":
        assert drafted > accepted
    elif kind == "self" and (temperature == 0 or rule == "match"):
        assert drafted == accepted > 0
    elif kind != "adversary":
        assert drafted > accepted > 0
    if layout == "tight":
        assert sum(o.metrics.num_preemptions for o in outputs) > 0, "this layout must preempt, or it tests nothing"


@pytest.mark.parametrize("kind", ["ngram", "model", "wrong"])
@pytest.mark.parametrize("k", [1, 2, 3, 8, 16, 40])
def test_every_constant_k(kind, k):
    """Also k beyond the block size, and beyond what is left to generate."""
    target = EchoModel(vocab=12)
    params = SamplingParams(temperature=0, max_tokens=33)
    outputs = run(make_engine(target, make_drafter(kind, target), k=k), PROMPTS, params)
    for prompt, out in zip(PROMPTS, outputs, strict=True):
        assert out.outputs[0].token_ids == plain(target, prompt, params, 0)


def test_alone_or_in_a_batch_is_the_same_text():
    """A request gives the same ids alone and among others, beside other rules and temperatures.

    Where the row budget cuts drafts short, `match` and greedy still do; rejection and block keep the law, not the text.
    """
    target = EchoModel(vocab=30)
    mixed = [
        SamplingParams(temperature=1.0, seed=1, max_tokens=30, verify="match"),
        SamplingParams(temperature=0.0, max_tokens=25),
        SamplingParams(temperature=0.7, top_p=0.9, seed=2, max_tokens=30, verify="rejection"),
        SamplingParams(temperature=1.3, top_k=9, seed=3, max_tokens=30, verify="block"),
        SamplingParams(temperature=0.9, min_p=0.05, seed=4, max_tokens=30, verify="match", num_speculative_tokens=0),
    ]
    roomy = run(make_engine(target, make_drafter("model", target)), PROMPTS, mixed)
    narrow = run(make_engine(target, make_drafter("model", target), max_rows=17), PROMPTS, mixed)
    for i, (prompt, p) in enumerate(zip(PROMPTS, mixed, strict=True)):
        alone = run(make_engine(target, make_drafter("model", target)), [prompt], [p])[0].outputs[0].token_ids
        assert alone == roomy[i].outputs[0].token_ids, f"request {i} felt its neighbours"
        if p.greedy or p.verify == "match":
            assert alone == narrow[i].outputs[0].token_ids, f"request {i} felt the row budget"


def test_prefix_hit_changes_nothing_but_the_cost():
    target = EchoModel(vocab=30)
    prompt, params = list(range(29)), SamplingParams(temperature=0, max_tokens=20)
    engine = make_engine(target, make_drafter("model", target), random_k=3)
    first = run(engine, [prompt], params)[0]
    rows = target.rows
    second = run(engine, [prompt], params)[0]
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == plain(target, prompt, params, 0)
    assert first.num_cached_tokens == 0 and second.num_cached_tokens == 28
    assert target.rows - rows < rows
    assert totals([second])[1] > 0, "acceptance collapsed after a prefix hit: the draft's KV was not caught up"


def test_rejected_drafts_are_never_shared():
    """A draft that crosses a block edge and is rejected must not be found by a later request with that very prefix."""
    target = EchoModel(vocab=30)
    engine = make_engine(target, make_drafter("wrong", target), block_size=2)
    params = SamplingParams(temperature=0, max_tokens=30)
    out = run(engine, [PROMPTS[0]], params)[0]
    assert totals([out])[0] > totals([out])[1]
    longer = PROMPTS[0] + out.outputs[0].token_ids[:9] + [0, 0, 0, 0]
    again = run(engine, [longer], params)[0]
    assert again.outputs[0].token_ids == plain(target, longer, params, 0)


def test_unruly_drafter_costs_drafts_not_requests(caplog):
    target = EchoModel(vocab=30)
    params = SamplingParams(temperature=0, max_tokens=40)
    outputs = run(make_engine(target, make_drafter("unruly", target)), PROMPTS, params)
    for prompt, out in zip(PROMPTS, outputs, strict=True):
        assert out.outputs[0].token_ids == plain(target, prompt, params, 0)
    assert "without drafts" in caplog.text


def test_draft_equal_to_target_is_always_accepted():
    """Any decay over 200 tokens would be a bug in the draft's KV bookkeeping (vllm#9730, #5765)."""
    target = EchoModel(vocab=30)
    for temperature, rule in ((0.0, "rejection"), (1.0, "rejection"), (1.0, "block"), (1.0, "match")):
        engine = make_engine(target, make_drafter("self", target), rule=rule, random_k=11)
        params = SamplingParams(temperature=temperature, max_tokens=200, seed=5)
        drafted, accepted = totals(run(engine, PROMPTS, params))
        assert drafted == accepted > 200, (temperature, rule)


def test_draft_context_shorter_than_the_targets_only_stops_drafting():
    target = EchoModel(vocab=30)
    params = SamplingParams(temperature=0, max_tokens=60)
    outputs = run(make_engine(target, make_drafter("model", target, max_len=32), k=3), [PROMPTS[0], PROMPTS[3]], params)
    for prompt, out in zip([PROMPTS[0], PROMPTS[3]], outputs, strict=True):
        assert out.outputs[0].token_ids == plain(target, prompt, params, 0)
    assert totals(outputs[:1])[0] > 0


def test_padded_vocabulary_rows_are_never_emitted():
    """The padding rows have by far the largest logits; their ids must not appear."""
    target = EchoModel(vocab=30, padding=34)
    params = SamplingParams(temperature=1.5, max_tokens=60, seed=3)
    outputs = run(make_engine(target, make_drafter("model", target)), PROMPTS, params)
    assert all(t < 30 for o in outputs for t in o.outputs[0].token_ids)


def test_abort_in_flight_frees_everything():
    target = EchoModel(vocab=30)
    drafter = make_drafter("model", target)
    engine = make_engine(target, drafter, random_k=1)
    for i in range(40):
        engine.add(f"a{i}", None, PROMPTS[i % 5], SamplingParams(temperature=1, max_tokens=50, seed=i))
        engine.step()
        check(engine)
        if i % 3 == 0:
            engine.abort(f"a{i}")
            check(engine)
    for i in range(40):
        engine.abort(f"a{i}")
    check(engine)
    assert not engine.has_work and engine.pool.available == engine.pool.num_blocks
    assert not drafter.covered, "the drafter remembers requests that are gone"
    engine.abort("never existed")


def test_plain_step_costs_no_draft_work():
    """Requests with k = 0 walk the plain path: one target row per token, the draft model not run at all."""
    target = EchoModel(vocab=30)
    drafter = make_drafter("model", target)
    outputs = run(make_engine(target, drafter), [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=30, num_speculative_tokens=0))
    assert drafter.model.passes == 0
    assert target.passes == 30 and target.rows == len(PROMPTS[0]) + 29
    assert outputs[0].metrics.num_passes == 30 and totals(outputs) == (0, 0)
