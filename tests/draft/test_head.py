"""The feature-level head: what it is given, what it keeps, and its law over the target's whole vocabulary."""

from __future__ import annotations

import pytest
import torch

from headstart.core.params import SamplingParams
from headstart.draft.head import HeadDrafter
from tests.doubles import EchoHead, EchoModel, make_engine, run, totals

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8], [1], [5] * 23, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 7, 7]]
LAYOUTS = {
    "roomy": {"block_size": 16, "max_rows": 256},
    "block-1": {"block_size": 1, "max_rows": 64},
    "chunked": {"block_size": 4, "max_rows": 6},
    "tight": {"block_size": 4, "max_rows": 32, "blocks": 22, "max_len": 80},
}


def head_of(target: EchoModel, kept: int | None = None, noise: float = 0.0, **options) -> HeadDrafter:
    values = {"max_len": 4096, "max_rows": 64, "temperature": None, **options}
    return HeadDrafter(EchoHead(target, kept or target.vocab, noise), target.vocab, **values)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_draft_of_the_targets_own_law_stands(layout, temperature, caplog):
    """Any state or token out of place, after rejections, steps without drafts, chunked prefill or preemption, would be a rejection."""
    target = EchoModel(vocab=30)
    params = [SamplingParams(temperature=temperature, max_tokens=40, seed=i) for i in range(len(PROMPTS))]
    engine = make_engine(target, head_of(target), rule="match", random_k=3, share=False, **LAYOUTS[layout])
    outputs = run(engine, PROMPTS, params, steps_between=1)
    drafted, accepted = totals(outputs)
    assert drafted == accepted > 50
    assert not caplog.records
    if layout == "tight":
        assert sum(o.metrics.num_preemptions for o in outputs) > 0, "this layout must preempt, or it tests nothing"


@pytest.mark.parametrize("kept", [15, 29, 30])
def test_rejections_leave_states_and_tokens_together(kept, caplog):
    target = EchoModel(vocab=30)
    drafted, accepted = totals(run(make_engine(target, head_of(target, kept, 2.0), random_k=5), PROMPTS * 3, SamplingParams(max_tokens=30)))
    assert drafted > accepted > 0
    assert not caplog.records


def test_after_a_prefix_hit_the_head_sees_what_the_target_computed(caplog):
    """The beginning has no states: fewer drafts stand, nothing else happens."""
    target = EchoModel(vocab=30, whole=0.0)  # a law of the last two tokens needs no beginning
    engine = make_engine(target, head_of(target), block_size=4, k=3)
    params = SamplingParams(temperature=0, max_tokens=12)
    first = run(engine, [PROMPTS[3]], params)
    again = run(engine, [PROMPTS[3]], params)
    assert again[0].num_cached_tokens > 0
    assert first[0].outputs[0].token_ids == again[0].outputs[0].token_ids
    drafted, accepted = totals(again)
    assert drafted == accepted > 0
    assert not caplog.records


def test_states_that_nobody_drafts_from_do_not_pile_up(caplog):
    target = EchoModel(vocab=30)
    drafter = head_of(target)
    engine = make_engine(target, drafter, max_rows=256, blocks=2000, max_len=4000)
    request = engine.add("0", None, [i % 30 for i in range(1500)], SamplingParams(temperature=0, max_tokens=1200))
    engine.draft_length = lambda seq: 0
    for _ in range(700):
        engine.step()
        assert sum(len(s) for k in drafter.known.values() for s in k.states) <= 512 + 256
    engine.draft_length = lambda seq: 4
    while not request.finished:
        engine.step()
    drafted, accepted = totals([request.output()])
    assert drafted == accepted > 300
    assert not drafter.known and not caplog.records


def test_a_head_with_a_shorter_context_stops_drafting_there():
    target = EchoModel(vocab=30)
    out = run(make_engine(target, head_of(target, max_len=20), k=4), [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=30))
    drafted, accepted = totals(out)
    assert 0 < drafted == accepted < 15


def test_options_that_leave_the_head_nothing_to_say_cost_its_drafts_only(caplog):
    target = EchoModel(vocab=30)
    drafter = head_of(target, kept=15)
    foreign = sorted(set(range(30)) - set(drafter.model.ids.tolist()))
    params = SamplingParams(temperature=1.0, max_tokens=10, seed=1, allowed_token_ids=foreign)
    out = run(make_engine(target, drafter), [PROMPTS[0]], params)
    assert totals(out) == (0, 0)
    assert set(out[0].outputs[0].token_ids) <= set(foreign)
    assert not caplog.records


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"presence_penalty": 0.5}])
def test_the_law_is_over_the_targets_vocabulary_and_zero_outside_its_own(options):
    target = EchoModel(vocab=30)
    drafter = head_of(target, kept=15)
    engine = make_engine(target, drafter, k=3)
    seen = []
    propose = drafter.propose
    drafter.propose = lambda chunks: seen.extend(made := propose(chunks)) or made
    run(engine, [PROMPTS[0]], SamplingParams(temperature=1.0, max_tokens=30, seed=None, verify="rejection", **options))
    laws = torch.cat([p.probs for p in seen if p.tokens])
    outside = torch.ones(30, dtype=torch.bool)
    outside[drafter.model.ids] = False
    assert laws.shape[1] == 30 and (laws[:, outside] == 0).all() and (laws.sum(-1) - 1).abs().max() < 1e-12
    assert (laws > 0).sum(-1).max() <= options.get("top_k", 15)
