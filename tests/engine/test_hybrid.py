"""Several drafters in the real engine: the text is plain decoding's, each is used where it pays, a request may name its own."""

from __future__ import annotations

import pytest

from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from headstart.draft.hybrid import HybridDrafter, Member
from tests.doubles import EchoModel, make_drafter, make_engine, plain, run
from tests.engine.test_pace_engine import Clock

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8], [1], [5] * 23]


def drafters_of(outputs):
    """(drafted, accepted) of each drafter over all outputs."""
    out: dict[str, tuple[int, int]] = {}
    for o in outputs:
        for name, s in o.metrics.speculative_decoding.drafters.items():
            drafted, accepted = out.get(name, (0, 0))
            out[name] = drafted + s.num_draft_tokens, accepted + s.num_accepted_draft_tokens
    return out


def engine_of(target, *kinds, **options):
    members = [Member(kind, make_drafter(kind, target), 5) for kind in kinds]
    return make_engine(target, HybridDrafter(members), **options)


def test_every_token_says_whose_draft_it_is():
    target = EchoModel(vocab=30)
    params = [SamplingParams(temperature=0, max_tokens=40, prediction=[9, 9, 3] if i == 1 else None) for i in range(len(PROMPTS))]
    outputs = run(engine_of(target, "suffix", "model", "wrong"), PROMPTS, params)
    accepted = dict.fromkeys(("suffix", "model", "wrong", "prediction"), 0)
    for prompt, p, out in zip(PROMPTS, params, outputs, strict=True):
        completion = out.outputs[0]
        assert completion.token_ids == plain(target, prompt, p, 0)
        assert [d is not None for d in completion.drafters] == [o == "draft" for o in completion.origins]
        for name in completion.drafters:
            if name is not None:
                accepted[name] += 1
    counted = drafters_of(outputs)
    assert accepted == {name: counted.get(name, (0, 0))[1] for name in accepted}
    assert accepted["model"] > 0 and set(counted) >= {"model", "suffix", "prediction"}
    stats = outputs[0].metrics.speculative_decoding
    assert stats.as_dict()["drafters"]["model"]["num_draft_tokens"] == stats.drafters["model"].num_draft_tokens
    assert sum(s.num_spec_steps for s in stats.drafters.values()) == stats.num_spec_steps


def test_a_request_names_its_drafter():
    """Side by side in one batch: each is served by the one it names, or by its own prediction."""
    target = EchoModel(vocab=30)
    names = ["suffix", "model", "wrong", None]
    params = [SamplingParams(temperature=1, seed=i, verify="match", max_tokens=50, drafter=name) for i, name in enumerate(names)]
    engine = engine_of(target, "suffix", "model", "wrong", random_k=5)
    outputs = run(engine, PROMPTS, params)
    for prompt, p, out in zip(PROMPTS, params, outputs, strict=True):
        assert out.outputs[0].token_ids == plain(target, prompt, p, p.seed)
    assert [set(drafters_of([o])) for o in outputs[:3]] == [{"suffix"}, {"model"}, {"wrong"}]
    own = SamplingParams(temperature=0, max_tokens=20, drafter="suffix", prediction=plain(target, [1, 2], SamplingParams(temperature=0), 0))
    assert "prediction" in drafters_of(run(engine, [[1, 2]], own))
    with pytest.raises(ConfigError, match="model, prediction, suffix, wrong"):
        engine.add("r", None, [1], SamplingParams(drafter="ngram"))
    with pytest.raises(ConfigError, match="needs a prediction"):
        engine.add("r", None, [1], SamplingParams(drafter="prediction"))


def test_a_named_drafter_changes_no_text():
    """One request of each drafter and rule, all options at once: the same ids under `match`."""
    target = EchoModel(vocab=30)
    base = {"temperature": 1.0, "seed": 3, "max_tokens": 40, "frequency_penalty": 0.3, "top_p": 0.9}
    params = [SamplingParams(**base, drafter=name, verify="match") for name in ("suffix", "model", None)]
    outputs = run(engine_of(target, "suffix", "model"), [PROMPTS[0]] * 3, params)
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) == 1


@pytest.mark.parametrize(("draft", "winner"), [(0.02, "self"), (2.0, "ngram")])
def test_the_choice_follows_the_measured_cost(draft, winner, monkeypatch):
    """The model is always right. It serves while it is cheap; where a draft of it costs two passes, lookup does what it can."""
    target = EchoModel(vocab=30, local=30.0)
    engine = engine_of(target, "ngram", "self", adaptive=True, max_len=1024, blocks=2000)
    monkeypatch.setattr("headstart.engine.clock.time.perf_counter", Clock(engine, 0.02, draft))
    outputs = run(engine, [[3, 1, 4]], SamplingParams(temperature=0, max_tokens=500))
    counted = drafters_of(outputs)
    assert counted[winner][1] > 0.5 * sum(accepted for _, accepted in counted.values()) > 100


def test_nobody_is_asked_who_cannot_serve():
    """A model whose context the text has outgrown leaves the step to the others, and costs nothing."""
    target = EchoModel(vocab=30)
    members = [Member("model", make_drafter("model", target, max_len=20), 5), Member("ngram", make_drafter("ngram", target), 5)]
    outputs = run(make_engine(target, HybridDrafter(members)), [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=60))
    assert outputs[0].outputs[0].token_ids == plain(target, PROMPTS[0], SamplingParams(temperature=0, max_tokens=60), 0)
    assert set(drafters_of(outputs)) == {"model", "ngram"}
    assert "model" not in outputs[0].outputs[0].drafters[12:]
