"""Every sampling option x drafter x rule x batch on the real engine: the ids of plain decoding, which is written a second time in
tests/reference.py. Laws, where ids need not be equal, are in test_joint_law.py."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch

from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, make_drafter, make_engine, run, totals
from tests.reference import letters_tokenizer, matches, plain_with_options

TOKENIZER = letters_tokenizer()
VOCAB = len(TOKENIZER)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8], [1], [5] * 11, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 7, 7]]
EOS = (0,)


def only_even(tokens, row):
    """A processor of the prefix: after an even number of tokens the odd ids are forbidden."""
    row = row.clone()
    if len(tokens) % 2 == 0:
        row[1::2] = float("-inf")
    return row


def no_repeats(tokens, row):
    row[tokens[-3:]] -= 5.0  # in place, as many do
    return row


OPTIONS = {
    "nothing": {},
    "presence": {"presence_penalty": 1.3},
    "negative-presence": {"presence_penalty": -0.8},
    "frequency": {"frequency_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.4},
    "all-penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 0.8},
    "bias": {"logit_bias": {3: 2.0, 7: -100, 11: 1.5}},
    "allowed": {"allowed_token_ids": [1, 2, 3, 5, 8, 13, 0]},
    "bad-words": {"bad_words": ["a", "bc", "de1", "ab", "fgh"]},
    "min-tokens": {"min_tokens": 13, "stop_token_ids": [4, 9], "logit_bias": {4: 2.0, 0: 1.0}},
    "processor": {"logits_processors": [only_even]},
    "processors": {"logits_processors": [no_repeats, only_even], "frequency_penalty": 0.2},
    "filters": {"top_k": 7, "top_p": 0.9, "min_p": 0.05},
    "logprobs": {"logprobs": 3},
    "everything": {
        "presence_penalty": 0.4,
        "repetition_penalty": 1.2,
        "logit_bias": {5: 1.0},
        "bad_words": ["cd", "a"],
        "min_tokens": 9,
        "stop_token_ids": [6],
        "logits_processors": [no_repeats],
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "logprobs": 1,
    },
}
REPEATS = ("nothing", "negative-presence", "bias", "allowed", "filters", "logprobs")  # under these a text repeats itself
TARGET = EchoModel(vocab=VOCAB, local=4.0)
DRAFTERS = ("ngram", "suffix", "model", "greedy-model", "adversary", "wrong", "hybrid", "quantised", "tokens")


def engine(kind: str, target=None, **more):
    target = target or TARGET
    more = {"tokenizer": TOKENIZER, "eos": EOS, "random_k": 7, **more}
    return make_engine(target, make_drafter(kind, target), **more)


def reference(prompt, params, target=None, allowed=None):
    target = target or TARGET
    return plain_with_options(target, prompt, params, params.seed, eos=EOS, tokenizer=TOKENIZER, allowed=allowed)


@functools.cache
def batch(option: str, temperature: float):
    """Params for each prompt, and the ids of plain decoding."""
    params = [SamplingParams(temperature=temperature, max_tokens=30, seed=50 + i, **OPTIONS[option]) for i in range(len(PROMPTS))]
    return params, [reference(prompt, p) for prompt, p in zip(PROMPTS, params, strict=True)]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("rule", "temperature"), [("rejection", 0.0), ("match", 1.0)])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_ids_equal_plain_decoding(kind, rule, temperature, option):
    """Together in a batch of five; alone is the next test."""
    params, expected = batch(option, temperature)
    outputs = run(engine(kind, rule=rule), PROMPTS, params, steps_between=1)
    assert [out.outputs[0].token_ids for out in outputs] == expected
    drafted, accepted = totals(outputs)
    assert drafted > accepted
    assert accepted > 0 or kind in ("adversary", "wrong") or (kind in ("ngram", "suffix") and option not in REPEATS)


def test_every_option_changes_the_text():
    """An option that is ignored would pass the test above if it did nothing anyway."""
    free = [reference(p, SamplingParams(temperature=0, max_tokens=30, seed=0)) for p in PROMPTS]
    for name, options in OPTIONS.items():
        if name not in ("nothing", "filters", "logprobs"):
            assert [reference(p, SamplingParams(temperature=0, max_tokens=30, seed=0, **options)) for p in PROMPTS] != free, name


@pytest.mark.parametrize("option", [o for o in OPTIONS if o not in ("nothing", "logprobs")])
def test_a_draft_equal_to_the_target_is_always_accepted(option):
    """Its rows are shaped as the target's are, its own drafts before them included; any slip would cost acceptance."""
    for temperature, rule in ((0.0, "rejection"), (1.0, "rejection"), (1.0, "block"), (1.0, "match")):
        params = SamplingParams(temperature=temperature, max_tokens=30, seed=4, **OPTIONS[option])
        drafted, accepted = totals(run(engine("self", rule=rule), PROMPTS[:2], params))
        assert drafted == accepted > 10, (temperature, rule)


@pytest.mark.parametrize("max_rows", [64, 17])
def test_any_mix_of_options_in_one_batch_is_each_alone(max_rows):
    """Every option at once, one request each, rules, temperatures and what drafts (a model, a prediction, nothing) mixed, in two orders."""
    mixed = [
        SamplingParams(temperature=t, max_tokens=20, seed=i, verify=rule, num_speculative_tokens=k, **options)
        for i, (options, (t, rule), k) in enumerate(
            zip(
                OPTIONS.values(),
                itertools.cycle([(0.0, "rejection"), (1.0, "match"), (0.7, "match"), (0.0, "block")]),
                itertools.cycle([5, 2, 0, 5, 5]),
            )
        )
    ]
    prompts = [PROMPTS[i % 5] for i in range(len(mixed))]
    for i in range(0, len(mixed), 3):  # a third of them bring what they expect: their answer, changed in two places
        answer = reference(prompts[i], mixed[i])
        expected = [*answer[:4], 1, *answer[5:9], *answer[11:]]
        mixed[i] = replace(mixed[i], prediction=expected)
    for order in (list(range(len(mixed))), list(reversed(range(len(mixed))))):
        made = engine("model", random_k=None, max_rows=max_rows, block_size=3)
        outputs = run(made, [prompts[i] for i in order], [mixed[i] for i in order], steps_between=1)
        for i, out in zip(order, outputs, strict=True):
            assert out.outputs[0].token_ids == reference(prompts[i], mixed[i]), list(OPTIONS)[i]
        assert 0 < totals(outputs)[1] < totals(outputs)[0]
        assert sum(out.metrics.accepted_prediction_tokens or 0 for out in outputs) > 10


@pytest.mark.parametrize("kind", ["ngram", "model", "self"])
@pytest.mark.parametrize("least", range(1, 16))
def test_min_tokens_in_the_middle_of_a_run(kind, least):
    """The token that would end the text is forbidden up to the minimum and no further, wherever in a burst that falls."""
    target = EchoModel(vocab=VOCAB, local=2.5)
    free = reference(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24, seed=0, ignore_eos=True), target)
    for end in {free[2], free[least - 1]} - {0}:
        params = SamplingParams(temperature=0, max_tokens=24, seed=0, min_tokens=least, stop_token_ids=[end])
        out = run(engine(kind, target), [PROMPTS[0]], params)[0].outputs[0]
        assert out.token_ids == reference(PROMPTS[0], params, target)
        assert len(out.token_ids) >= least and end not in out.token_ids[:least]


@pytest.mark.parametrize("least", [0, 1, 3, 6])
def test_stop_strings_count_from_min_tokens_on(least):
    target = EchoModel(vocab=VOCAB, local=2.5)
    free = TOKENIZER.decode(reference(PROMPTS[1], SamplingParams(temperature=0, max_tokens=24, seed=0, ignore_eos=True), target))
    for stop in {free[1], free[2:4], free[5]}:
        params = SamplingParams(temperature=0, max_tokens=24, seed=0, ignore_eos=True, min_tokens=least, stop=stop)
        with_drafts = run(engine("self", target), [PROMPTS[1]], params)[0].outputs[0]
        without = run(engine("none", target), [PROMPTS[1]], params)[0].outputs[0]
        assert with_drafts.token_ids == without.token_ids == reference(PROMPTS[1], params, target)
        assert with_drafts.text == without.text and with_drafts.stop_reason == without.stop_reason


# Log probabilities


def expected_logprobs(target, prompt, ids, params, processed):
    from tests.reference import bad_word_ids, shaped

    bad = bad_word_ids(TOKENIZER, params.bad_words) if params.bad_words else []
    for i in range(len(ids)):
        row = target.logits((*prompt, *ids[:i]))[:VOCAB]
        if processed:
            row = torch.tensor(shaped(row.tolist(), prompt, ids[:i], params, EOS, bad), dtype=torch.float64)
            if not params.greedy:
                from headstart.ops.sampling import law

                yield law(row[None], params)[0].log()
                continue
        yield torch.log_softmax(row, -1)


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize(
    ("kind", "rule", "temperature"),
    [("model", "rejection", 0.8), ("ngram", "block", 0.0), ("adversary", "match", 1.0), ("self", "block", 1.0)],
)
def test_logprobs_are_the_targets(kind, rule, temperature, processed):
    target = EchoModel(vocab=VOCAB, local=2.5)
    params = SamplingParams(
        temperature=temperature, max_tokens=25, seed=3, logprobs=4, frequency_penalty=0.3, bad_words=["ab"], top_p=0.9, stop_token_ids=[13]
    )
    made = engine(kind, target, rule=rule)
    made.processed_logprobs = processed
    for prompt, out in zip(PROMPTS, run(made, PROMPTS, params), strict=True):
        c = out.outputs[0]
        assert len(c.logprobs) == len(c.token_ids) > 0
        total = 0.0
        for token, entry, row in zip(
            c.token_ids, c.logprobs, expected_logprobs(target, prompt, c.token_ids, params, processed), strict=True
        ):
            assert next(iter(entry)) == token and len(entry) in (4, 5)
            for i, scored in entry.items():
                assert scored.logprob == pytest.approx(float(row[i]), abs=1e-9)
                assert scored.decoded_token == TOKENIZER.decode([i])
            assert entry[token].rank == int((row > row[token]).sum()) + 1
            top = [s.logprob for s in entry.values()][-4:]
            assert sorted(top, reverse=True) == sorted(row.topk(4).values.tolist(), reverse=True)
            total += entry[token].logprob
        assert c.cumulative_logprob == pytest.approx(total)


def test_logprobs_count_as_wished():
    """None: none at all. 0: the token alone. -1: all of them, where the engine allows it."""
    target = EchoModel(vocab=VOCAB)
    made = engine("model", target)
    plain = run(made, [PROMPTS[0]], SamplingParams(max_tokens=4, seed=1))[0].outputs[0]
    assert plain.logprobs is None and plain.cumulative_logprob is None
    alone = run(made, [PROMPTS[0]], SamplingParams(max_tokens=4, seed=1, logprobs=0))[0].outputs[0]
    assert [len(e) for e in alone.logprobs] == [1] * 4
    for wanted in (21, -1):
        with pytest.raises(ConfigError, match="max_logprobs=20"):
            made.add("x", None, [1], SamplingParams(logprobs=wanted))
    made.max_logprobs = -1
    everything = run(made, [PROMPTS[0]], SamplingParams(max_tokens=4, seed=1, logprobs=-1))[0].outputs[0]
    assert [len(e) for e in everything.logprobs] == [VOCAB] * 4
    assert all(math.fsum(math.exp(s.logprob) for s in e.values()) == pytest.approx(1) for e in everything.logprobs)


@pytest.mark.parametrize("layout", [{}, {"max_rows": 6}, {"block_size": 1, "max_rows": 7}, {"blocks": 26, "max_len": 60}])
@pytest.mark.parametrize("kind", ["ngram", "model"])
def test_prompt_logprobs(kind, layout, monkeypatch):
    """Of every prompt token, however the prompt is chunked, after a prefix hit, with n completions and after preemption."""
    from headstart.core import scheduler

    monkeypatch.setattr(scheduler, "SCORED_ROWS", 5)
    target = EchoModel(vocab=VOCAB)
    made = engine(kind, target, **layout)
    params = SamplingParams(max_tokens=12, temperature=0, prompt_logprobs=2, n=2, seed=1, ignore_eos=True)
    for _ in range(2):  # the second time the prompts are in the prefix cache
        for prompt, out in zip(PROMPTS, run(made, PROMPTS, params), strict=True):
            assert out.prompt_logprobs[0] is None and len(out.prompt_logprobs) == len(prompt)
            for i, entry in enumerate(out.prompt_logprobs[1:], start=1):
                row = torch.log_softmax(target.logits(tuple(prompt[:i])), -1)
                assert next(iter(entry)) == prompt[i] and len(entry) in (2, 3)
                assert all(s.logprob == pytest.approx(float(row[t]), abs=1e-9) for t, s in entry.items())
            assert [c.token_ids for c in out.outputs] == [reference(prompt, params, target)] * 2
    assert run(made, [PROMPTS[0]], SamplingParams(max_tokens=2))[0].prompt_logprobs is None


def test_best_of_returns_the_likeliest():
    target = EchoModel(vocab=VOCAB, local=2.5)
    params = {"temperature": 1.2, "max_tokens": 10, "seed": 5, "ignore_eos": True}
    everything = run(engine("model", target), [PROMPTS[0]], SamplingParams(n=6, logprobs=0, **params))[0].outputs
    best = run(engine("model", target), [PROMPTS[0]], SamplingParams(n=2, best_of=6, **params))[0].outputs
    ranked = sorted(everything, key=lambda c: -c.cumulative_logprob)
    assert [c.token_ids for c in best] == [c.token_ids for c in ranked[:2]] != [c.token_ids for c in everything[:2]]
    assert [c.index for c in best] == [0, 1] and [c.cumulative_logprob for c in best] == [c.cumulative_logprob for c in ranked[:2]]
    assert best[0].logprobs is None


def test_detokenize_off_gives_ids_only():
    out = run(engine("model"), [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=9, detokenize=False, logprobs=1))[0].outputs[0]
    assert out.text == "" and len(out.token_ids) == 9 == len(out.token_texts)
    assert all(s.decoded_token is None for e in out.logprobs for s in e.values())


@pytest.mark.parametrize(("keep", "length"), [(1, 1), (4, 4), (11, 11), (500, 11), (-1, 8)])
def test_truncated_prompts_keep_their_end(keep, length):
    made = engine("model", max_len=20)
    params = (
        SamplingParams(temperature=0, max_tokens=12, truncate_prompt_tokens=keep, seed=0)
        if keep < 11
        else SamplingParams(temperature=0, max_tokens=9, truncate_prompt_tokens=keep, seed=0)
    )
    out = run(made, [PROMPTS[0]], params)[0]
    assert out.prompt_token_ids == PROMPTS[0][-length:]
    assert out.outputs[0].token_ids == reference(PROMPTS[0][-length:], params)


# Structured output

# Text that is forced comes in the tokenizer's own spelling only, which the reference does not know.
SPELLED = '\\{"a":[0-9]+(,"b":"[a-e]*")?\\}'
PATTERNS = ["(ab|cd)+[0-9]{2,4}", "a?b{3,5}(1|22|333)c*", "[a-j ]{4,9}\\.", SPELLED]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", ["none", "ngram", "model", "wrong", "self"])
@pytest.mark.parametrize(("rule", "temperature"), [("rejection", 0.0), ("match", 1.0)])
def test_structured_output_is_plain_constrained_decoding(pattern, kind, rule, temperature):
    import regex

    target = TARGET
    params = [
        SamplingParams(temperature=temperature, max_tokens=24, seed=i, structured_outputs={"regex": pattern}, frequency_penalty=0.1)
        for i in range(len(PROMPTS))
    ]
    outputs = run(engine(kind, target, rule=rule), PROMPTS, params, steps_between=1)
    without = run(engine("none", target, rule=rule), PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in without]
    for prompt, p, out in zip(PROMPTS, params, outputs, strict=True):
        c = out.outputs[0]
        if pattern != SPELLED:
            assert c.token_ids == reference(prompt, p, target, matches(pattern, TOKENIZER, EOS))
        assert regex.fullmatch(pattern, c.text, partial=c.finish_reason == "length"), c.text
    if kind in ("model", "self"):
        assert totals(outputs)[1] > 0


def test_forced_tokens_are_drafted_for_free():
    """Where the grammar leaves no choice the drafter is not asked, and every such draft stands."""
    target = EchoModel(vocab=VOCAB)
    drafter = make_drafter("wrong", target)
    made = make_engine(target, drafter, tokenizer=TOKENIZER, eos=EOS, k=8)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=40, structured_outputs={"regex": "abcdefghij0123456789"})
    out = run(made, [PROMPTS[0]], params)[0]
    stats = out.metrics.speculative_decoding
    assert out.outputs[0].text == "abcdefghij0123456789" and out.outputs[0].finish_reason == "stop"
    assert stats.num_draft_tokens == stats.num_accepted_draft_tokens >= 12
    assert out.metrics.num_passes <= 4


def test_a_grammar_beside_free_requests_and_several_completions():
    """Each completion walks the grammar on its own; the neighbours do not feel it."""
    target = EchoModel(vocab=VOCAB, local=2.5)
    free = SamplingParams(temperature=0, max_tokens=20, seed=0)
    held = SamplingParams(temperature=1, max_tokens=20, seed=4, n=4, structured_outputs={"regex": PATTERNS[0]}, verify="match")
    outputs = run(engine("model", target, blocks=30, max_len=60), [PROMPTS[0], PROMPTS[1], PROMPTS[0]], [free, held, free], steps_between=1)
    assert outputs[0].outputs[0].token_ids == outputs[2].outputs[0].token_ids == reference(PROMPTS[0], free, target)
    texts = [c.text for c in outputs[1].outputs]
    assert len(set(texts)) > 1
    alone = run(engine("none", target), [PROMPTS[1]], [held])[0].outputs
    assert [c.token_ids for c in outputs[1].outputs] == [c.token_ids for c in alone]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"json": {"type": "no such type"}}, "Invalid type"),
        ({"json": {"type": "string", "minLength": 3, "maxLength": 1}}, "minLength"),
        ({"regex": "("}, "unclosed group"),
        ({"grammar": "start: nowhere"}, "unknown name"),
    ],
)
def test_wrong_schemas_are_reported_before_anything_runs(wanted, words):
    made = engine("ngram")
    with pytest.raises(ConfigError, match=words):
        made.add("r", None, [1, 2], SamplingParams(structured_outputs=wanted))
    assert not made.has_work and not made.requests


@pytest.mark.parametrize(
    ("tokenizer", "eos", "options", "words"),
    [
        (None, (0,), {"structured_outputs": {"regex": "a"}}, "needs a tokenizer"),
        (TOKENIZER, (), {"structured_outputs": {"regex": "a"}}, "end-of-text"),
        (None, (), {"bad_words": ["a"]}, "logit_bias"),
        (TOKENIZER, (), {"logit_bias": {VOCAB: 1}}, "logit_bias.*vocabulary"),
        (TOKENIZER, (), {"allowed_token_ids": [1, VOCAB]}, "allowed_token_ids.*vocabulary"),
        (TOKENIZER, (), {"stop_token_ids": [VOCAB]}, "stop_token_ids.*vocabulary"),
        (TOKENIZER, (), {"logprobs": 21}, "max_logprobs"),
        (TOKENIZER, (), {"prompt_logprobs": -1}, "max_logprobs"),
    ],
)
def test_options_this_engine_cannot_serve(tokenizer, eos, options, words):
    made = engine("ngram", tokenizer=tokenizer, eos=eos)
    with pytest.raises(ConfigError, match=words):
        made.add("r", None, [1, 2], SamplingParams(**options))
    assert not made.has_work and not made.requests


# Numerical faults


class Poisoned(EchoModel):
    """NaN after any context that ends in token 7 twice among its last three."""

    bad = float("nan")

    def logits(self, tokens):
        row = super().logits(tokens)
        return row * self.bad if tokens[-3:].count(7) >= 2 else row


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(("rule", "temperature"), [("rejection", 0.0), ("match", 1.0), ("block", 0.0)])
@pytest.mark.parametrize("kind", ["none", "ngram", "model", "wrong"])
def test_a_row_without_a_law_ends_its_sequence_where_plain_decoding_does(kind, rule, temperature, bad):
    """Not earlier: a rejected draft may lead to a broken row that plain decoding never sees. The others go on."""
    target = Poisoned(vocab=10, local=2.0)
    target.bad = bad
    errors = 0
    params = [SamplingParams(temperature=temperature, max_tokens=40, seed=i, logprobs=1) for i in range(12)]
    prompts = [[i % 7, 3, i % 5] for i in range(12)]
    outputs = run(make_engine(target, make_drafter(kind, target), rule=rule, random_k=3), prompts, params)
    for prompt, p, out in zip(prompts, params, outputs, strict=True):
        healthy = plain_with_options(EchoModel(vocab=10, local=2.0), prompt, p, p.seed)
        text = [*prompt, *healthy]
        fatal = next((i for i in range(len(prompt), len(text)) if text[max(0, i - 3) : i].count(7) >= 2), None)
        ids = out.outputs[0].token_ids
        assert len(out.outputs[0].logprobs) == len(ids)
        if fatal is None:
            assert ids == healthy and out.error is None
        else:
            errors += 1
            assert ids == text[len(prompt) : fatal]
            assert (
                out.outputs[0].finish_reason == "error"
                and f"not finite: the model or its dtype is at fault, at output token {len(ids)}" in out.error
            )
    assert 0 < errors < 12


def raises_late(tokens, row):
    if len(tokens) >= 20:
        raise KeyError("nothing here")
    return row


@pytest.mark.parametrize(
    ("options", "words", "ids"),
    [
        ({"logits_processors": [raises_late]}, "raises_late raised KeyError: 'nothing here', at output token 9", 9),
        ({"logits_processors": [lambda tokens, row: row[:5]]}, "shape", 0),
        ({"logits_processors": [lambda tokens, row: row * float("nan")]}, "not finite", 0),
        ({"logits_processors": [lambda tokens, row: None]}, "NoneType", 0),
        ({"logits_processors": [lambda tokens, row: row.fill_(float("-inf"))]}, "allow no token", 0),
        ({"allowed_token_ids": [0, 4], "min_tokens": 5, "stop_token_ids": [4]}, "allow no token", 0),
    ],
)
@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
def test_options_without_a_law_end_their_request_and_no_other(kind, options, words, ids):
    target = EchoModel(vocab=VOCAB, local=2.5)
    healthy = SamplingParams(temperature=0, max_tokens=20, seed=0)
    bad = SamplingParams(temperature=0, max_tokens=20, seed=0, **options)
    first, broken, last = run(engine(kind, target), [PROMPTS[0]] * 3, [healthy, bad, healthy])
    assert broken.outputs[0].finish_reason == "error" and words in broken.error and len(broken.outputs[0].token_ids) == ids
    assert first.outputs[0].token_ids == last.outputs[0].token_ids == reference(PROMPTS[0], healthy, target)
