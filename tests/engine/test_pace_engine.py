"""Adaptive draft lengths in the real engine: whatever the clock says, the answer is plain decoding's; what does not pay is paused."""

from __future__ import annotations

import pytest

from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, expecting, make_drafter, make_engine, plain, run, totals

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8], [1], [5] * 23]


class Clock:
    """Time that depends on the work alone: a base and a price for each row of the target and of the draft model."""

    def __init__(self, engine, row: float, draft: float) -> None:
        self.now, self.row, self.draft = 0.0, row, draft
        self._charge(engine.target.model, 1.0, row)
        model = getattr(engine.drafter.members[-1].drafter.drafter, "model", None)
        if model is not None:
            self._charge(model, draft, draft / 10)

    def _charge(self, model, base: float, row: float) -> None:
        forward = model.forward

        def charged(batch, *rest):
            self.now += base + row * (len(batch.tokens) - 1)
            return forward(batch, *rest)

        model.forward = charged

    def __call__(self) -> float:
        return self.now


def adaptive(kind, row, draft=0.02, monkeypatch=None, **options):
    target = EchoModel(vocab=30, local=options.pop("local", 4.0))
    engine = make_engine(target, make_drafter(kind, target), adaptive=True, **options)
    clock = Clock(engine, row, draft)
    if monkeypatch is not None:
        monkeypatch.setattr("headstart.engine.clock.time.perf_counter", clock)
    return target, engine, clock


@pytest.mark.parametrize(("rule", "temperature"), [("rejection", 0.0), ("block", 0.0), ("match", 1.0)])
@pytest.mark.parametrize("kind", ["ngram", "suffix", "corpus", "prediction", "model", "self", "wrong", "unruly", "hybrid", "quantised"])
def test_ids_equal_plain_decoding(kind, rule, temperature):
    """On the real clock, which nobody can predict."""
    target, engine, _ = adaptive(kind, 0.1, rule=rule)
    params = [expecting(kind, target, p, SamplingParams(temperature=temperature, max_tokens=60, seed=i)) for i, p in enumerate(PROMPTS)]
    outputs = run(engine, PROMPTS, params, steps_between=2)
    for prompt, p, out in zip(PROMPTS, params, outputs, strict=True):
        assert out.outputs[0].token_ids == plain(target, prompt, p, p.seed)
    assert not engine.drafter.pace.runners, "the pace remembers sequences that are gone"


def seconds(kind, row, draft, monkeypatch, tokens, *, batch=1, **options):
    """(simulated seconds, outputs) for `tokens` tokens each of a batch."""
    _, engine, clock = adaptive(kind, row, draft, monkeypatch, max_len=1024, blocks=2000, **options)
    params = SamplingParams(temperature=0, max_tokens=tokens)
    return clock, run(engine, [[i + 1, 3, 1, 4] for i in range(batch)], params), engine


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize(("kind", "row", "draft"), [("wrong", 0.5, 0.0), ("adversary", 0.3, 0.1), ("self", 1.0, 0.2), ("model", 0.9, 0.5)])
def test_what_does_not_pay_costs_next_to_nothing(kind, row, draft, batch, monkeypatch):
    clock, outputs, _ = seconds(kind, row, draft, monkeypatch, 400, batch=batch)
    plain_clock, _, _ = seconds("none", row, draft, monkeypatch, 400, batch=batch)
    assert clock.now < plain_clock.now / 0.97
    drafted, _ = totals(outputs)
    assert 0 < drafted < 400 * batch * 0.5


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize(
    ("kind", "row", "draft", "gain"), [("self", 0.02, 0.02, 3.0), ("model", 0.02, 0.02, 1.2), ("ngram", 0.02, 0.0, 1.2)]
)
def test_what_pays_is_used(kind, row, draft, gain, batch, monkeypatch):
    clock, outputs, _ = seconds(kind, row, draft, monkeypatch, 400, batch=batch, local=30.0)
    plain_clock, _, _ = seconds("none", row, draft, monkeypatch, 400, batch=batch, local=30.0)
    assert clock.now * gain < plain_clock.now
    assert totals(outputs)[1] > 100


def test_without_pace_the_length_is_what_was_set():
    target = EchoModel(vocab=30, local=4.0)
    engine = make_engine(target, make_drafter("self", target), k=3)
    assert not engine.drafter.adaptive
    stats = run(engine, [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=40))[0].metrics.speculative_decoding
    assert set(stats.per_step_drafted[:-1]) == {3}


def test_waiting_lookups_are_watched_and_start_again(monkeypatch):
    """Nothing repeats at first and every pass with drafts would be dear; once the text repeats, lookup is taken up without a probe."""
    _, outputs, engine = seconds("ngram", 0.25, 0.0, monkeypatch, 500, local=30.0)
    stats = outputs[0].metrics.speculative_decoding
    assert engine.drafter.pace.pools["drafter", 3].tried and stats.num_accepted_draft_tokens > 50


def test_a_seed_gives_the_same_text_whatever_the_clock_says():
    """Without a rule of its own a seeded request is verified by `match`; others by rejection; what is configured wins."""
    texts = []
    for row in (0.01, 2.0):
        target, engine, _ = adaptive("model", row, 0.01)
        engine.rule = None
        request = engine.add("r", None, PROMPTS[0], SamplingParams(seed=5, max_tokens=60))
        assert request.completions[0].seq.rule == "match"
        assert engine.add("u", None, PROMPTS[0], SamplingParams(max_tokens=1)).completions[0].seq.rule == "rejection"
        assert engine.add("b", None, PROMPTS[0], SamplingParams(seed=1, max_tokens=1, verify="block")).completions[0].seq.rule == "block"
        while engine.has_work:
            engine.step()
        texts.append(request.output().outputs[0].token_ids)
    assert texts[0] == texts[1] == plain(target, PROMPTS[0], SamplingParams(max_tokens=60), 5)


def test_forced_text_and_predictions_are_drafted_though_the_drafter_is_poor(monkeypatch):
    """The pace of a hopeless drafter must not pause what a grammar forces, nor what the client expects."""
    from tests.reference import letters_tokenizer

    tokenizer = letters_tokenizer()
    target = EchoModel(vocab=len(tokenizer), local=4.0)
    engine = make_engine(target, make_drafter("wrong", target), adaptive=True, tokenizer=tokenizer, eos=(0,), max_len=1024, blocks=2000)
    monkeypatch.setattr("headstart.engine.clock.time.perf_counter", Clock(engine, 0.1, 0.0))
    poor = run(engine, [[1, 2]], SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))[0]
    assert totals([poor])[0] < 100
    held = run(engine, [[1, 2]], SamplingParams(temperature=0, max_tokens=60, structured_outputs={"regex": "abcdefghij0123456789"}))[0]
    assert held.metrics.num_passes < 10 and totals([held])[1] >= 12
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    expected = plain(target, [3, 4], params, 0)
    out = run(engine, [[3, 4]], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, prediction=expected))[0]
    assert out.outputs[0].token_ids == expected and out.metrics.num_passes < 20


@pytest.mark.parametrize("kind", ["self", "head"])
def test_reading_the_prompt_is_not_the_price_of_a_draft(kind, monkeypatch):
    """The first call reads all of the prompt, a later one what came meanwhile: the price that is remembered is that of a draft."""
    _, engine, _ = adaptive(kind, 0.05, 0.1, monkeypatch, max_len=1024, blocks=2000, max_rows=512)
    prices = []
    took = engine.drafter.pace.drafting_took
    monkeypatch.setattr(engine.drafter.pace, "drafting_took", lambda *a: (took(*a), prices.append(dict(engine.drafter.pace.draft_steps))))
    (out,) = run(engine, [[i % 30 for i in range(400)]], SamplingParams(temperature=0, max_tokens=60))
    drafted, accepted = totals([out])
    assert drafted >= accepted > 10
    seen = [price for each in prices for price in each.values()]
    assert len(seen) > 5 and 0 < max(seen) < 0.2, "a pass of 400 rows takes 4.1"
