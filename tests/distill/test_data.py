"""Texts by the target: the same ones whatever happens on the way, without doubles, loops and the questions of a benchmark."""

from __future__ import annotations

import json

import pytest

from headstart.core.errors import ConfigError, ModelError
from headstart.distill import prompts
from headstart.distill.data import Settings, Store, Text, Writer, repeats, select

SETTINGS = Settings("tiny", max_tokens=24)


def write(llm, folder, tokens=600, given=(), excluded=frozenset(), batch=6, stop=lambda: False, settings=SETTINGS):
    store = Store(folder, settings)
    try:
        return Writer(llm, store, settings, given, excluded, batch).write(tokens, lambda text: None, stop)
    finally:
        store.close()


def numbers(split):
    return {t.number: (t.tokens, t.start, t.temperature) for t in (*split.train, *split.held_out)}


def test_killed_and_resumed_it_writes_the_same_texts(llm, tmp_path):
    whole = write(llm, tmp_path / "whole")
    assert whole.tokens >= 600 and len(whole.train) > 5 and whole.held_out
    calls = iter(range(10**6))
    for limit in (10, 35, 60):  # ended three times at some step, each time with half a line at the end of the file
        write(llm, tmp_path / "parts", stop=lambda limit=limit: next(calls) % 100 > limit)
        with (tmp_path / "parts" / "texts.jsonl").open("a") as f:
            f.write('{"number": 3, "tok')
    resumed = write(llm, tmp_path / "parts", batch=3)  # and at last with another batch
    assert numbers(resumed) == numbers(whole)
    assert {t.number for t in resumed.held_out} == {t.number for t in whole.held_out}


def test_the_target_answers_its_own_user_turns_in_its_template(llm, tmp_path):
    split = write(llm, tmp_path)
    tokenizer = llm.get_tokenizer()
    for text in split.train[:8]:
        words = tokenizer.decode(text.tokens)
        assert words.startswith("<|im_start|>user\n") and "<|im_start|>assistant\n" in words
        assert tokenizer.decode(text.tokens[: text.start]) == "<|im_start|>user\n"
    assert {t.temperature for t in split.train} == {0.0, 0.7, 1.0}


def test_given_prompts_are_answered_but_excluded_ones_never(llm, tmp_path):
    asked = [f"the cat sat on mat {i}" for i in range(20)]
    file, barred = tmp_path / "p.jsonl", tmp_path / "bench.jsonl"
    file.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in [*asked, asked[0]]))
    barred.write_text(json.dumps({"turns": ["The cat sat... on MAT 3!", "the cat sat on mat 5"]}) + "\n")
    excluded = prompts.exclusions([str(barred)])
    given, refused = prompts.read([str(file)], excluded)
    assert refused == 2 and len(given) == 18
    split = write(llm, tmp_path / "out", tokens=10**6, given=given)
    words = [llm.get_tokenizer().decode(t.tokens) for t in (*split.train, *split.held_out)]
    assert len(words) + sum(split.left_out.values()) == 18
    assert not any("mat 3<" in w or "mat 5<" in w for w in words)
    assert all(t.tokens[t.start - 1] == llm.get_tokenizer()("\n").input_ids[-1] for t in split.train), "answers begin after the template"


def text(number, tokens, key="", start=0):
    return Text(number, list(tokens), start, 1.0, prompts.digest(key or str(number)))


def test_only_texts_worth_having_are_chosen():
    texts = {
        0: text(0, range(20)),
        1: text(1, range(20), key="0"),  # asked before
        2: text(2, [1, 2, 3] * 20),  # goes round
        3: text(3, [1]),
        4: text(4, range(30)),
        6: text(6, range(40)),  # 5 is not there yet, so this one is not counted on
    }
    split, enough = select(texts, frozenset({prompts.digest("4")}), 50)
    assert split.left_out == {"excluded": 1, "double": 1, "loop": 1, "short": 1} and not enough
    assert [t.number for t in (*split.train, *split.held_out)] == [0]
    assert select(texts, frozenset(), 40)[1]


def test_repeats_is_the_share_of_8_grams_said_again():
    assert repeats(range(100)) == 0
    assert repeats([1] * 17) == pytest.approx(0.9)
    assert repeats([1, 2]) == 0


def test_other_settings_and_damaged_files_are_refused(llm, tmp_path):
    write(llm, tmp_path, tokens=100)
    with pytest.raises(ConfigError, match="max_tokens"):
        Store(tmp_path, Settings("tiny", max_tokens=25))
    lines = (tmp_path / "texts.jsonl").read_text().splitlines()
    (tmp_path / "texts.jsonl").write_text("\n".join([lines[0], "{}", *lines[1:]]) + "\n")
    with pytest.raises(ModelError, match="line 2"):
        Store(tmp_path, SETTINGS)
