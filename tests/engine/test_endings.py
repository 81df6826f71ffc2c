"""Where a text ends: at the same place with and without drafts, in ids, text, counts and reasons."""

from __future__ import annotations

import pytest

from headstart.core.errors import ConfigError
from headstart.core.params import SamplingParams
from tests import tiny
from tests.doubles import EchoModel, make_drafter, make_engine, plain, run, totals
from tests.reference import plain_with_options

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


class Letters:
    """A tokenizer of single characters, some of which take two tokens: id 26 + id 27 together are one character."""

    eos_token_id = None

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        out, i = "", 0
        while i < len(ids):
            if ids[i] == 26 and i + 1 < len(ids) and ids[i + 1] == 27:
                out, i = out + "é", i + 1
            elif ids[i] in (26, 27):
                out += "�"
            else:
                out += chr(97 + ids[i])
            i += 1
        return out


def speculate(target, params, eos=(), kind="self", k=5, tokenizer=None):
    return run(make_engine(target, make_drafter(kind, target), eos=eos, k=k, tokenizer=tokenizer), [PROMPT], params)[0]


@pytest.mark.parametrize("index", range(14))
@pytest.mark.parametrize("kind", ["self", "model", "ngram"])
def test_eos_at_every_index_of_a_run(index, kind):
    """Declare a produced token to be EOS and run again: the text ends at its first occurrence, wherever in a burst it falls."""
    target = EchoModel(vocab=30)
    params = SamplingParams(temperature=0, max_tokens=20)
    eos = plain(target, PROMPT, params, 0)[index]
    out = speculate(target, params, eos=(29, eos), kind=kind)
    assert out.outputs[0].token_ids == plain(target, PROMPT, params, 0, eos=(29, eos))
    assert out.outputs[0].finish_reason == "stop" and out.outputs[0].stop_reason is None
    ids = out.outputs[0].token_ids
    assert totals([out])[1] <= len(ids), "more drafts accepted than tokens produced"
    ignoring = speculate(target, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), eos=(eos,), kind=kind)
    assert ignoring.outputs[0].token_ids == plain(target, PROMPT, params, 0)


def test_stop_id_beats_the_length_cap_and_names_itself():
    target = EchoModel(vocab=30)
    free = plain(target, PROMPT, SamplingParams(temperature=0, max_tokens=8), 0)
    at = next(i for i, t in enumerate(free) if t not in free[:i] and i >= 3)
    out = speculate(target, SamplingParams(temperature=0, max_tokens=at + 1, stop_token_ids=[free[at]]))
    assert (out.outputs[0].finish_reason, out.outputs[0].stop_reason) == ("stop", free[at])
    assert out.outputs[0].token_ids == free[: at + 1]


@pytest.mark.parametrize("k", range(1, 11))
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_max_tokens_is_exact(limit, k):
    target = EchoModel(vocab=30)
    out = speculate(target, SamplingParams(temperature=0, max_tokens=limit), k=k)
    assert len(out.outputs[0].token_ids) == limit and out.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("k", range(0, 9))
def test_context_limit_is_exact(k):
    target = EchoModel(vocab=30)
    drafter = make_drafter("self" if k else "none", target)
    engine = make_engine(target, drafter, max_len=len(PROMPT) + 13, k=max(k, 1))
    out = run(engine, [PROMPT], SamplingParams(temperature=0, max_tokens=None))[0]
    assert len(out.outputs[0].token_ids) == 13 and out.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("start", range(0, 9, 2))
def test_stop_strings_across_tokens(start, length, include):
    """A stop string that spans tokens of a burst cuts text, ids and counts where plain decoding cuts them."""
    target, letters = EchoModel(vocab=26), Letters()
    text = letters.decode(plain(target, PROMPT, SamplingParams(temperature=0, max_tokens=16), 0))
    stop = text[start : start + length]
    params = SamplingParams(temperature=0, max_tokens=16, stop=[stop, "never"], include_stop_str_in_output=include)
    got = speculate(target, params, tokenizer=letters).outputs[0]
    want = speculate(target, params, tokenizer=letters, kind="none").outputs[0]
    end = text.find(stop) + len(stop)
    assert got.text == want.text == (text[:end] if include else text[: text.find(stop)])
    assert got.token_ids == want.token_ids and len(got.token_ids) == end
    assert got.stop_reason == want.stop_reason == stop and got.finish_reason == "stop"
    assert "".join(got.token_texts) == got.text and len(got.token_texts) == len(got.origins) == len(got.token_ids)


def test_streams_never_take_back():
    """Text only grows, incomplete characters and possible stop beginnings are held back, the last text is the final one."""
    target, letters = EchoModel(vocab=28, local=2.0), Letters()
    for seed in range(12):
        for stop in ("zzzz", "ab", "é", "q"):
            engine = make_engine(target, make_drafter("model", target), tokenizer=letters, random_k=seed)
            request = engine.add("r", None, PROMPT, SamplingParams(seed=seed, max_tokens=40, stop=stop))
            shown = ""
            while not request.finished:
                engine.step()
                text = request.output().outputs[0].text
                assert text.startswith(shown), "the stream took text back"
                shown = text
                if stop == "q" and not request.finished:  # nothing is held back for this one but incomplete characters
                    assert not text.endswith("�")
            assert stop not in shown
            ids = request.output().outputs[0].token_ids
            full = letters.decode(ids)
            assert shown == (full[: full.find(stop)] if stop in full else full)


def test_n_completions_differ_and_are_reproducible():
    target = EchoModel(vocab=30)
    params = SamplingParams(n=4, seed=11, max_tokens=12)
    engine = make_engine(target, make_drafter("model", target))
    first = run(engine, [PROMPT], params)[0]
    again = run(make_engine(target, make_drafter("model", target)), [PROMPT], params)[0]
    texts = [tuple(c.token_ids) for c in first.outputs]
    assert [c.index for c in first.outputs] == [0, 1, 2, 3] and len(set(texts)) == 4
    assert texts == [tuple(c.token_ids) for c in again.outputs]
    assert engine.pool.hits > 0, "the completions should share their prompt's KV"


def test_seeds_have_an_effect_and_are_recorded():
    target = EchoModel(vocab=30)

    def ids(seed):
        out = run(make_engine(target, make_drafter("ngram", target)), [PROMPT], SamplingParams(seed=seed, max_tokens=12))[0]
        return out.outputs[0].token_ids, out.metrics.seed

    assert ids(42) == ids(42) and ids(42)[0] != ids(43)[0] and ids(42)[1] == 42
    drawn = ids(None)[1]
    assert ids(drawn)[0] == ids(None)[0]


class Broken(EchoModel):
    """Gives NaN logits whenever the context contains token 7."""

    def logits(self, tokens):
        row = super().logits(tokens)
        return row * float("nan") if 7 in tokens else row


def test_nan_ends_its_request_with_an_error_and_spares_the_others():
    target = Broken(vocab=30)
    params = [SamplingParams(temperature=0.0, max_tokens=10), SamplingParams(temperature=1.0, seed=1, max_tokens=4)]
    bad, _ = run(make_engine(target, make_drafter("ngram", target)), [[1, 7, 2], [1, 2, 3]], params)
    assert bad.outputs[0].finish_reason == "error" and "not finite" in bad.error and bad.outputs[0].token_ids == []
    healthy = EchoModel(vocab=30, seed=5)
    mixed = run(make_engine(healthy, make_drafter("ngram", healthy)), [[1, 2, 3]], params[1])[0]
    assert mixed.error is None


@pytest.mark.parametrize(
    ("ids", "params", "words"),
    [
        ([], {}, "prompt is empty"),
        ([1] * 512, {}, "the context 512"),
        ([1, 30], {}, "0..29"),
        ([1, -1], {}, "0..29"),
        ([1, 1.5], {}, "0..29"),
        ([True], {}, "0..29"),
        ([1], {"stop": "x"}, "stop_token_ids"),
        ([1], {"num_speculative_tokens": 3}, "nothing drafts"),
    ],
)
def test_requests_that_cannot_be_served(ids, params, words):
    target = EchoModel(vocab=30)
    engine = make_engine(target, make_drafter("none", target))
    with pytest.raises(ConfigError, match=words):
        engine.add("r", None, ids, SamplingParams(**params))
    assert not engine.has_work and not engine.requests


WRITTEN = "naïve — 中文与日本語 😀👩‍👩‍👧🇩🇪 e\u0301a\u0308 ½ the cat sat. def"


@pytest.mark.parametrize("kind", ["none", "ngram", "self", "wrong"])
@pytest.mark.parametrize("stop", [None, "日本", "😀👩", "\u0301a", "at s", "½ "])
def test_streams_of_any_script(kind, stop):
    """A grammar makes the model write a given text, byte by byte: whole characters only, nothing taken back, the end where it is due."""
    tokenizer = tiny.tokenizer()
    target = EchoModel(vocab=len(tokenizer))
    for seed in range(3):
        engine = make_engine(target, make_drafter(kind, target), tokenizer=tokenizer, eos=(2,), random_k=seed)
        params = SamplingParams(
            seed=seed, max_tokens=200, stop=stop, structured_outputs={"choice": [WRITTEN, WRITTEN[:20] + "x"]}, logit_bias={90: -9}
        )
        request = engine.add("r", None, PROMPT, params)
        shown, steps = "", 0
        while not request.finished:
            engine.step()
            text = request.output().outputs[0].text
            assert text.startswith(shown) and "\ufffd" not in text
            shown, steps = text, steps + 1
        out = request.output().outputs[0]
        full = tokenizer.decode([t for t in out.token_ids if t != 2])
        assert out.finish_reason == "stop" and "".join(out.token_texts) == shown == out.text
        if stop is not None and stop in full:
            assert out.stop_reason == stop and shown == full[: full.find(stop)]
        else:
            assert shown == full in (WRITTEN, WRITTEN[:20] + "x")


class Coarse(EchoModel):
    """Logits on a coarse grid, as bfloat16 makes them: many exact ties, at the top and at the border of every filter."""

    def logits(self, tokens):
        return (super().logits(tokens) * 1.5).round()


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.5}, {"temperature": 0.0, "frequency_penalty": 1.0}]
)
@pytest.mark.parametrize("kind", ["ngram", "model", "adversary"])
def test_ties_are_broken_alike_with_and_without_drafts(kind, options):
    target = Coarse(vocab=30)
    ties = sum(int((row == row.max()).sum() > 1) for row in map(target.logits, [(i, j) for i in range(30) for j in range(5)]))
    assert ties > 30
    params = SamplingParams(max_tokens=40, seed=3, verify="match", **options)
    outputs = run(make_engine(target, make_drafter(kind, target), random_k=5), [PROMPT, [1]], params)
    for prompt, out in zip([PROMPT, [1]], outputs, strict=True):
        assert out.outputs[0].token_ids == plain_with_options(target, prompt, params, 3)
    assert totals(outputs)[0] > 0
