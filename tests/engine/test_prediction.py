"""Predicted outputs: the answer is that without one, its tokens are counted, and where it has nothing to say another drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from tests.doubles import Behind, EchoModel, expecting, make_drafter, make_engine, plain, run, totals

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def speculate(params, kind="prediction", k=5, eos=(), **engine):
    target = EchoModel(vocab=30)
    return target, run(make_engine(target, make_drafter(kind, target), k=k, k_predicted=16, eos=eos, **engine), [PROMPT], params)[0]


def counts(out):
    return out.metrics.accepted_prediction_tokens, out.metrics.rejected_prediction_tokens


@pytest.mark.parametrize("kind", ["none", "prediction", "ngram", "model"])
def test_nothing_behind_or_any_drafter(kind):
    """With no drafter at all a request may bring its prediction, at the default length."""
    target = EchoModel(vocab=30)
    params = expecting("prediction", target, PROMPT, SamplingParams(temperature=0, max_tokens=40))
    _, out = speculate(params, kind)
    assert out.outputs[0].token_ids == plain(target, PROMPT, params, 0)
    accepted, rejected = counts(out)
    assert accepted > 15 and rejected > 0
    stats = out.metrics.speculative_decoding
    assert max(stats.per_step_drafted) > 5, "the drafter behind may be asked for 5, the prediction for more"
    if kind in ("none", "prediction"):
        assert totals([out]) == (accepted + rejected, accepted)
    elif kind == "model":
        assert totals([out])[0] > accepted + rejected, "nobody drafted where the prediction had nothing to say"


def test_an_exact_prediction_is_all_accepted_and_a_useless_one_harmless():
    target = EchoModel(vocab=30)
    params = SamplingParams(temperature=0, max_tokens=34)
    answer = plain(target, PROMPT, params, 0)
    _, out = speculate(replace(params, prediction=answer))
    assert out.outputs[0].token_ids == answer and out.metrics.num_passes == 2 and counts(out) == (32, 0)
    _, out = speculate(replace(params, prediction=[t for t in range(30) if t not in answer][:1]))
    assert out.outputs[0].token_ids == answer and counts(out) == (0, 1)
    _, out = speculate(params, kind="none")
    assert counts(out) == (None, None) and totals([out]) == (0, 0)
    _, out = speculate(replace(params, prediction=answer, num_speculative_tokens=0))
    assert counts(out) == (0, 0) and out.metrics.num_passes == 34
    _, out = speculate(replace(params, prediction=answer, num_speculative_tokens=3), kind="none")
    assert max(out.metrics.speculative_decoding.per_step_drafted) == 3


def test_drafts_behind_the_end_are_not_counted():
    target = EchoModel(vocab=30)
    answer = plain(target, PROMPT, SamplingParams(temperature=0, max_tokens=30), 0)
    at = next(i for i, t in enumerate(answer) if t not in answer[:i] and i >= 5)
    _, out = speculate(SamplingParams(temperature=0, max_tokens=30, prediction=answer), eos=(answer[at],))
    assert out.outputs[0].token_ids == answer[: at + 1] and counts(out) == (at + 1, 0)


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_sampled_with_n_in_a_batch(rule):
    """Each of n completions follows the prediction by itself; in match mode they are those without it."""
    target = EchoModel(vocab=30)
    params = [SamplingParams(n=3, temperature=0.1, seed=s, max_tokens=25, verify=rule) for s in (1, 2)]
    prompts = [PROMPT, PROMPT[:5]]
    predicted = [expecting("prediction", target, q, replace(p, temperature=0)) for q, p in zip(prompts, params, strict=True)]
    predicted = [replace(p, temperature=0.1) for p in predicted]
    outputs = run(make_engine(target, make_drafter("prediction", target), random_k=3), prompts, predicted)
    assert all(counts(o)[0] > 0 and counts(o)[1] > 0 for o in outputs)
    if rule == "match":
        without = run(make_engine(target, make_drafter("none", target)), prompts, params)
        assert [[c.token_ids for c in o.outputs] for o in outputs] == [[c.token_ids for c in o.outputs] for o in without]


class Words:
    """A tokenizer of letters that puts a token 0 before a text, as some do a space."""

    eos_token_id = None

    def __call__(self, text, add_special_tokens=True):
        ids = [0, *(28 if c == "\n" else ord(c) - 96 for c in text)]
        return type("Encoded", (), {"input_ids": [29, *ids] if add_special_tokens else ids})

    def decode(self, ids, **_):
        return "".join(chr(96 + i) for i in ids)


def test_text_is_tokenized_as_a_continuation():
    target = EchoModel(vocab=30)
    engine = make_engine(target, Behind(), tokenizer=Words())
    request = engine.add("r", None, PROMPT, SamplingParams(prediction="abc"))
    assert request.completions[0].seq.prediction == (1, 2, 3)


@pytest.mark.parametrize(
    ("prediction", "words"), [("text", "needs a tokenizer"), ([30], "0..29"), ([1] * 600, "600 tokens, the context 512")]
)
def test_predictions_that_cannot_be(prediction, words):
    target = EchoModel(vocab=30)
    engine = make_engine(target, make_drafter("none", target))
    with pytest.raises(ConfigError, match=words):
        engine.add("r", None, [1], SamplingParams(prediction=prediction))
    assert not engine.has_work
