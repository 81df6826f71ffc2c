"""Any SamplingParams that construction accepts gives the ids of plain decoding: random options, drafters, rules, prompts, layouts.

HEADSTART_FUZZ=N tries N fresh random cases; without it the same ones every time.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.core.params import SamplingParams
from tests.doubles import EchoModel, check, make_drafter, make_engine
from tests.reference import letters_tokenizer, matches, plain_with_options

TOKENIZER = letters_tokenizer()
VOCAB = len(TOKENIZER)
TARGETS = [EchoModel(vocab=VOCAB, local=2.0 + 2 * i, seed=i) for i in range(3)]
SEEN: Counter[str] = Counter()
EXAMPLES = int(os.environ.get("HEADSTART_FUZZ", "0"))

IDS = st.integers(0, VOCAB - 1)
WORDS = st.text(alphabet="abcdefghij", min_size=1, max_size=3)
PENALTY = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 2))
PATTERNS = st.sampled_from(["[a-j]{2,6}[0-9]*", "(ab|cd|e)+1?", "[0-9]{1,3}(,[0-9]{1,3})*", "(a|bb|ccc)*d"])


@st.composite
def sampling(draw):
    temperature = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.7]))
    most = draw(st.integers(1, 22))
    options = {
        "presence_penalty": PENALTY,
        "frequency_penalty": PENALTY,
        "repetition_penalty": st.floats(0.5, 2).map(lambda x: round(x, 2)),
        "logit_bias": st.dictionaries(IDS, st.floats(-100, 5).map(lambda x: round(x, 1)), max_size=4),
        "bad_words": st.lists(WORDS, max_size=3),
        "stop_token_ids": st.lists(IDS, max_size=3),
        "top_k": st.integers(-1, VOCAB + 3),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 0.5),
        "logprobs": st.integers(0, 5),
        "n": st.integers(1, 3),
        "num_speculative_tokens": st.integers(0, 9),
        "detokenize": st.booleans(),
    }
    if draw(st.integers(0, 3)) == 0:
        options["structured_outputs"] = st.fixed_dictionaries({"regex": PATTERNS})
    else:
        options |= {
            "allowed_token_ids": st.lists(IDS, min_size=6, max_size=20, unique=True),
            "min_tokens": st.integers(0, most),
            "ignore_eos": st.booleans(),
        }
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=6, unique=True))
    return {
        "temperature": temperature,
        "max_tokens": most,
        "seed": draw(st.integers(0, 99)),
        **{name: draw(options[name]) for name in chosen},
    }


@settings(
    max_examples=EXAMPLES or 120,
    deadline=None,
    derandomize=not EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    requests=st.lists(st.tuples(st.lists(IDS, min_size=1, max_size=9), sampling()), min_size=1, max_size=4),
    target=st.sampled_from(TARGETS),
    kind=st.sampled_from(["ngram", "model", "greedy-model", "self", "adversary", "wrong", "unruly"]),
    layout=st.sampled_from([{}, {"block_size": 1}, {"max_rows": 7}, {"blocks": 16, "block_size": 4, "max_len": 48, "max_rows": 16}]),
    random_k=st.one_of(st.none(), st.integers(0, 9)),
)
def any_request_equals_plain_decoding(requests, target, kind, layout, random_k):
    made = make_engine(target, make_drafter(kind, target), tokenizer=TOKENIZER, eos=(0,), random_k=random_k, **layout)
    params = [SamplingParams(verify="match", **options) for _, options in requests]
    added = [made.add(str(i), None, prompt, p) for i, ((prompt, _), p) in enumerate(zip(requests, params, strict=True))]
    while made.has_work:
        made.step()
        check(made)
    for (prompt, _), p, request in zip(requests, params, added, strict=True):
        wanted = p.structured_outputs
        allowed = matches(wanted.regex, TOKENIZER, (0,)) if wanted else None
        for completion in request.completions:
            seq, out = completion.seq, completion.output()
            try:
                expected = plain_with_options(target, prompt, p, seq.seed, eos=(0,), tokenizer=TOKENIZER, allowed=allowed)
            except IndexError:  # the options allow no token somewhere: no law to draw from
                assert out.finish_reason == "error" and "allow no token" in request.error
                continue
            if out.finish_reason != "error":  # greedy in the reference takes id 0 where nothing is allowed
                assert out.token_ids == expected
            assert len(out.logprobs or out.token_ids) == len(out.token_ids)
            s = completion.stats
            assert s.num_accepted_draft_tokens <= min(len(out.token_ids), s.num_draft_tokens)
            SEEN.update(drafted=s.num_draft_tokens, accepted=s.num_accepted_draft_tokens, **{out.finish_reason: 1})


def test_any_request_equals_plain_decoding():
    SEEN.clear()
    any_request_equals_plain_decoding()
    assert SEEN["drafted"] > SEEN["accepted"] > 0 and SEEN["stop"] > 0 and SEEN["length"] > 0
