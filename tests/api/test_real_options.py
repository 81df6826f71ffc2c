"""A sample of the options on SmolLM2: text, ids and log probabilities with drafts are those without."""

from __future__ import annotations

import json

import pytest

from headstart import LLM, SamplingParams

pytestmark = pytest.mark.real

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}
LIST = "Continue the list: one apple, two pears, three apples, four pears, five apples,"
CITY = "Give the largest city of Japan and its population as JSON."


def shout(tokens, row):
    return row * 1.2


CASES = [
    (LIST, {"temperature": 0, "repetition_penalty": 1.2, "logprobs": 2}),
    (LIST, {"temperature": 0, "frequency_penalty": 0.6, "presence_penalty": 0.4, "min_tokens": 16}),
    (LIST, {"temperature": 0.8, "bad_words": ["apples", "pears"], "top_p": 0.95}),
    (LIST, {"temperature": 0.8, "logit_bias": {28: -100, 30: -4}, "min_p": 0.05, "prompt_logprobs": 1}),
    (LIST, {"temperature": 0.7, "logits_processors": [shout], "n": 2, "stop": ["seven"]}),
    (CITY, {"temperature": 0, "structured_outputs": {"json": SCHEMA}, "max_tokens": 40}),
    (CITY, {"temperature": 1.0, "structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "max_tokens": 40}),
    (CITY, {"temperature": 1.0, "structured_outputs": {"choice": ["Tokyo", "Osaka", "Kyoto"]}}),
]


@pytest.fixture(scope="module")
def llm(real_file):
    """In double precision, where no near-tie of two logits can turn on the number of rows."""
    spec = {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
        "num_speculative_tokens": 4,
        "verify": "match",
        "adaptive": False,
    }
    return LLM(str(real_file), dtype="float64", max_model_len=160, kv_cache_memory="512MiB", speculative_config=spec)


@pytest.fixture(scope="module")
def both(llm):
    """Outputs with drafts, and without."""
    chats = [[{"role": "user", "content": text}] for text, _ in CASES]
    arms = []
    for k in (4, 0):
        params = [SamplingParams(**{"max_tokens": 18, "seed": 9, **options}, num_speculative_tokens=k) for _, options in CASES]
        arms.append(llm.chat(chats, params, use_tqdm=False))
    return arms


def test_everything_is_as_without_drafts(both):
    drafted = accepted = 0
    for (_, options), fast, plain in zip(CASES, *both, strict=True):
        stats = fast.metrics.speculative_decoding
        drafted, accepted = drafted + stats.num_draft_tokens, accepted + stats.num_accepted_draft_tokens
        for a, b in zip(fast.outputs, plain.outputs, strict=True):
            assert (a.token_ids, a.text, a.finish_reason, a.stop_reason) == (b.token_ids, b.text, b.finish_reason, b.stop_reason), options
            for x, y in zip(a.logprobs or [], b.logprobs or [], strict=True):
                assert list(x) == list(y) and all(x[t].logprob == pytest.approx(y[t].logprob, abs=1e-6) for t in x)
    assert drafted > accepted > 0


def test_the_answers_keep_to_their_grammar(both):
    for (_, options), out in zip(CASES, both[0], strict=True):
        wanted = options.get("structured_outputs", {})
        if "json" in wanted:
            answer = json.loads(out.outputs[0].text)
            assert set(answer) == {"city", "population"} and isinstance(answer["population"], int)
        if "choice" in wanted:
            assert out.outputs[0].text in wanted["choice"]


def test_the_options_do_what_they_say(both):
    by_case = dict(enumerate(both[0]))
    assert not any(word in by_case[2].outputs[0].text for word in (" apples", " pears"))
    assert 28 not in by_case[3].outputs[0].token_ids and len(by_case[3].prompt_logprobs) == len(by_case[3].prompt_token_ids)
    assert len(by_case[4].outputs) == 2
