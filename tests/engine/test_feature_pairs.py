"""Every pair of features together at least once: drafter, rule, options, structured output, prefix hits, layout, endings."""

from __future__ import annotations

import itertools

import pytest

from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, make_drafter, make_engine, run, totals
from tests.reference import letters_tokenizer, matches, plain_with_options

TOKENIZER = letters_tokenizer()
TARGET = EchoModel(vocab=len(TOKENIZER), local=4.0)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8], [5] * 9]

FEATURES = {
    "drafter": ["ngram", "model", "greedy-model", "wrong", "unruly", "hybrid", "quantised", "asking", "tokens", "text"],
    "rule": [("rejection", 0.0), ("block", 0.0), ("match", 1.0)],
    "penalty": [{}, {"frequency_penalty": 0.6}, {"repetition_penalty": 1.3, "presence_penalty": 0.4}],
    "bias": [{}, {"logit_bias": {3: 1.5, 7: -100}}],
    "filter": [{}, {"min_p": 0.05, "top_k": 9, "top_p": 0.9}],
    "words": [{}, {"bad_words": ["ab", "c"]}],
    "shape": [{}, {"structured_outputs": {"regex": "[a-j]{3,12}( a)*[0-9]{0,4}"}}],
    "ending": [{}, {"stop": ["d", "1"]}, {"stop_token_ids": [4, 15], "max_tokens": 17}],
    "logprobs": [{}, {"logprobs": 2, "prompt_logprobs": 1}],
    "completions": [{}, {"n": 3}],
    "cut": [{}, {"truncate_prompt_tokens": 5}],
    "prefix": [False, True],
    "layout": [{}, {"block_size": 1}, {"max_rows": 9}, {"blocks": 24, "block_size": 4, "max_len": 48, "max_rows": 16}],
}


def all_pairs() -> list[tuple]:
    """Rows of FEATURES in which every pair of values of two features occurs; the row that covers most comes first."""
    names = list(FEATURES)
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(FEATURES[names[a]]))
        for j in range(len(FEATURES[names[b]]))
    }
    rows = []
    while left:
        a, i, b, j = min(left)
        row = {a: i, b: j}
        for c in range(len(names)):
            if c not in row:
                gain = [
                    sum(tuple(sum(sorted([(c, v), (d, w)]), ())) in left for d, w in row.items()) for v in range(len(FEATURES[names[c]]))
                ]
                row[c] = gain.index(max(gain))
        left -= {(x, row[x], y, row[y]) for x, y in itertools.combinations(range(len(names)), 2)}
        rows.append(tuple(row[c] for c in range(len(names))))
    return rows


@pytest.mark.parametrize("row", all_pairs(), ids=lambda row: "".join(map(str, row)))
def test_pairs_of_features(row):
    chosen = {name: values[i] for (name, values), i in zip(FEATURES.items(), row, strict=True)}
    rule, temperature = chosen["rule"]
    options = {"max_tokens": 24, "temperature": temperature, "seed": 7}
    for name in ("penalty", "bias", "filter", "words", "shape", "ending", "logprobs", "completions", "cut"):
        options |= chosen[name]
    params = SamplingParams(**options)
    made = make_engine(
        TARGET, make_drafter(chosen["drafter"], TARGET), rule=rule, tokenizer=TOKENIZER, eos=(0,), random_k=3, **chosen["layout"]
    )
    if chosen["prefix"]:
        run(made, PROMPTS, SamplingParams(max_tokens=8, seed=1))
    outputs = run(made, PROMPTS, params, steps_between=1)
    allowed = matches(params.structured_outputs.regex, TOKENIZER, (0,)) if params.structured_outputs else None
    from headstart.core import rand

    for prompt, out in zip(PROMPTS, outputs, strict=True):
        prompt = prompt[-(params.truncate_prompt_tokens or len(prompt)) :]
        assert out.error is None and out.prompt_token_ids == prompt and len(out.outputs) == params.n
        for i, c in enumerate(out.outputs):
            seed = 7 if params.n == 1 else rand.child_seed(7, i)
            assert c.token_ids == plain_with_options(TARGET, prompt, params, seed, eos=(0,), tokenizer=TOKENIZER, allowed=allowed)
            assert "".join(c.token_texts) == c.text and len(c.origins) == len(c.token_ids)
            if params.logprobs is not None:
                assert len(c.logprobs) == len(c.token_ids) and len(out.prompt_logprobs) == len(prompt)
    drafted, accepted = totals(outputs)
    assert drafted >= accepted


def test_all_pairs_are_there():
    rows = all_pairs()
    for (a, values), (b, others) in itertools.combinations(enumerate(FEATURES.values()), 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product(range(len(values)), range(len(others))))
    assert len(rows) < 45
