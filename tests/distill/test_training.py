"""Heads and small models: what is trained is what runs, and a training killed anywhere ends with the same bits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from headstart import SamplingParams
from headstart.analysis.score import score
from headstart.analysis.trajectory import Trajectory
from headstart.bench.arms import make_arms
from headstart.core.errors import ConfigError, ModelError
from headstart.distill import export, run, vocabulary
from headstart.distill.data import Settings, Store, Writer
from headstart.distill.eagle import HeadStudent
from headstart.distill.features import collate, extract
from headstart.distill.train import Options, batches, measure, train
from headstart.models.head import read_head_config
from headstart.runtime.checkpoint import open_checkpoint
from headstart.runtime.loader import load_head
from headstart.runtime.runner import Feed, lay_out

TAPS = (1, 2, 3)
OPTIONS = Options(epochs=3.0, batch_tokens=128, rate=2e-3)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Waking a second thread takes longer than what such small tensors give it to do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def texts(llm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    settings = Settings("tiny", max_tokens=24)
    store = Store(folder, settings)
    split = Writer(llm, store, settings, [], frozenset(), 8).write(1200, lambda text: None)
    store.close()
    return split


@pytest.fixture(scope="module")
def examples(llm, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    made = [extract(llm.engine, part, TAPS, folder, lambda text: None) for part in (texts.train, texts.held_out)]
    files = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    again = [extract(llm.engine, part, TAPS, folder, lambda text: None) for part in (texts.train, texts.held_out)]
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == files, "what is there is not made again"
    assert all(torch.equal(a.states, b.states) for x, y in zip(made, again, strict=True) for a, b in zip(x, y, strict=True))
    return made


def student(llm, texts, vocab=200, passes=3) -> HeadStudent:
    plan = run.Plan(kind="head", out=None, tokens=1, vocab=vocab, passes=passes)  # type: ignore[arg-type]
    return run._head(llm, plan, texts, TAPS)


def small(llm, **options):
    return run._small(llm, run.Plan(kind="model", out=None, tokens=1, layers=1, **options))  # type: ignore[arg-type]


def test_the_teacher_is_the_targets_law(llm, texts, examples):
    """From the last state and the mass of all logits; the vocabulary cut to a part leaves the rest as it is."""
    s = student(llm, texts)
    text = examples[0][0]
    feed = Feed(text.tokens.tolist(), 0, list(range(40)), len(text.tokens))
    p = torch.softmax(llm.engine.target.forward([feed])[0].float(), -1)[:, s.target.ids]
    _, _, alone, _ = next(iter(s.laws(collate([text]))))
    first = max(1, text.start - 1)
    assert torch.allclose(alone.law(slice(None)), p[first : len(text.tokens) - 1], atol=2e-3)


def test_what_was_trained_is_what_runs(llm, texts, examples, tmp_path):
    """Every pass of the training form gives the logits that the runtime head gives as that draft: same context, same logits."""
    s = student(llm, texts)
    s.start(examples[0])
    with torch.no_grad():
        for p in s.parameters():
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
    folder = tmp_path / "head"
    said = export.head_config(s.config, "tiny", ["LlamaForCausalLM"], 3)
    export.export_head(folder, s.config, {n: t.float() for n, t in s.exported().items()}, s.target.ids, said)
    checkpoint = open_checkpoint(str(folder))
    target = llm.engine.target.model
    config = read_head_config(checkpoint.config, target.config.layers)
    assert replace(config, layer=s.config.layer) == s.config
    head = load_head(checkpoint, config, target.embed, llm.engine.target.vocab, torch.float32, torch.device("cpu"))

    text = examples[1][0]
    tokens, n = text.tokens.tolist(), len(text.tokens)
    with torch.no_grad():
        passes = [(last @ table.T, w) for last, table, _, w in s.laws(collate([replace(text, start=0)]))]
    cache = head.new_cache(512)
    with torch.inference_mode():
        for at in (6, 11, n - 5):  # the position of the last state that the target has shown
            feed = Feed(tokens[1 : at + 2], 0, list(range(40)), 1)
            batch = lay_out([feed], 16, head.dtype, head.device)
            logits, state = head.forward(batch, head.fuse(text.states[: at + 1].float()), cache)
            for j, (expected, _) in enumerate(passes):
                row = at
                assert torch.allclose(logits[0], expected[row], atol=3e-2, rtol=3e-2), (at, j)
                assert not torch.allclose(logits[0], expected[row - 1], atol=3e-2, rtol=3e-2), "one position off would not be seen"
                feed = Feed([tokens[at + 2 + j]], at + 1 + j, list(range(40)), 1)
                logits, state = head.forward(lay_out([feed], 16, head.dtype, head.device), state, cache)


def test_analyse_finds_the_alpha_of_the_training_form(llm, texts, examples, tmp_path):
    """Draft by draft, root by root: dense attention over all roots at once here, the runtime head from each root there."""
    s = student(llm, texts)
    s.start(examples[0])
    folder = tmp_path / "head"
    said = export.head_config(s.config, "tiny", ["LlamaForCausalLM"], 3)
    export.export_head(folder, s.config, {n: t.float() for n, t in s.exported().items()}, s.target.ids, said)
    (_, arm) = make_arms(llm, [{"model": str(folder), "num_speculative_tokens": 3, "adaptive": False}])
    example = next(e for e in examples[1] if e.start > 3 and len(e.tokens) > e.start + 12)
    tokens, start = example.tokens.tolist(), example.start
    text = Trajectory("x", "all", tokens[:start], tokens[start:], len(tokens) - start)
    _, ((found,),) = score(llm, [arm.drafter], [text], SamplingParams(temperature=1.0), 3, lambda: False)
    assert found.by_draft is not None and np.isnan(found.by_draft[0]).all() and found.lengths.tolist() == [0, *[3] * (len(text.answer) - 1)]
    with torch.no_grad():
        each = [
            torch.minimum(torch.softmax(last @ table.T, -1), teacher.law(slice(None))).sum(-1).numpy()
            for last, table, teacher, _ in s.laws(collate([example]))
        ]
    count = len(text.answer)
    for draft, expected in enumerate(each):  # `expected` at every token of the answer, however its root lies
        own = found.by_draft[1 : count - draft, draft]
        assert np.abs(own - expected[1 + draft :]).max() < 0.02 < own.std(), draft
        assert np.isnan(found.by_draft[count - draft :, draft]).all()


def test_the_start_is_a_good_guess_and_training_makes_a_better_one(llm, texts, examples, tmp_path):
    s = student(llm, texts)
    raw = measure(s, examples[1])
    progress, done = train(s, *examples, replace(OPTIONS, epochs=12.0), tmp_path / "s", lambda text: None)
    first, last = progress.points[0]["alpha"], [f["alpha"] for f in run.figures(s, examples[1])]
    assert done and raw[0].alpha / raw[0].weight < first[0] < last[0]
    assert sum(last) > sum(first)
    assert progress.best_step > 0 and progress.points[-1]["loss"] < progress.points[1]["loss"]


@pytest.mark.parametrize("kind", ["head", "model", "lora"])
def test_killed_anywhere_and_resumed_it_ends_with_the_same_bits(kind, llm, texts, examples, tmp_path, monkeypatch):
    make = {"head": lambda: student(llm, texts), "model": lambda: small(llm), "lora": lambda: small(llm, lora=True)}[kind]
    whole = make()
    progress, done = train(whole, *examples, OPTIONS, tmp_path / "whole", lambda text: None)
    assert done and progress.steps > 20
    monkeypatch.setattr("headstart.distill.train._SAVE_SECONDS", 0.0)  # a kill is an end after any save
    for limit in (1, 7, 11):
        calls = iter(range(10**6))
        _, done = train(make(), *examples, OPTIONS, tmp_path / "parts", lambda text: None, lambda limit=limit, c=calls: next(c) >= limit)
        assert not done
    parts = make()
    resumed, done = train(parts, *examples, OPTIONS, tmp_path / "parts", lambda text: None)
    assert done and resumed == progress
    named = dict(parts.named_parameters())
    assert all(torch.equal(p, named[n]) for n, p in whole.named_parameters())
    assert kind != "head" or all(torch.equal(a, b) for a, b in zip(whole.exported().values(), parts.exported().values(), strict=True))


def test_a_state_of_other_options_or_a_damaged_one_is_refused(llm, texts, examples, tmp_path):
    path = tmp_path / "state"
    train(student(llm, texts), *examples, OPTIONS, path, lambda text: None, lambda: True)
    with pytest.raises(ConfigError, match="other options"):
        train(student(llm, texts), *examples, replace(OPTIONS, loss="kl"), path, lambda text: None)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="damaged"):
        train(student(llm, texts), *examples, OPTIONS, path, lambda text: None)


def test_a_time_budget_becomes_a_number_of_steps_once(llm, texts, examples, tmp_path):
    options = replace(OPTIONS, time_budget=0.5)
    progress, _ = train(student(llm, texts), *examples, options, tmp_path / "s", lambda text: None, lambda: True)
    again, _ = train(student(llm, texts), *examples, options, tmp_path / "s", lambda text: None, lambda: True)
    assert progress.steps == again.steps >= 1


def test_an_epoch_has_every_text_once_in_batches_of_bounded_size(examples):
    for epoch in (0, 1):
        made = batches(examples[0], 128, 5, epoch)
        assert sorted(i for b in made for i in b) == list(range(len(examples[0])))
        assert all(len(b) == 1 or len(b) * max(len(examples[0][i].tokens) for i in b) <= 128 for b in made)
    assert batches(examples[0], 128, 5, 0) == batches(examples[0], 128, 5, 0) != batches(examples[0], 128, 5, 1)


def test_the_vocabulary_is_what_the_target_says_most(llm, texts):
    ids = vocabulary.choose(texts.train, llm.get_tokenizer(), llm.engine.eos_ids, llm.engine.target.vocab, 100)
    assert len(ids) == len(set(ids.tolist())) == 100 and ids.tolist() == sorted(ids.tolist())
    assert {*llm.engine.eos_ids, *llm.get_tokenizer()("0\n").input_ids} <= set(ids.tolist())
    smaller = vocabulary.choose(texts.train, llm.get_tokenizer(), llm.engine.eos_ids, llm.engine.target.vocab, 50)
    assert vocabulary.coverage(texts.train, smaller) < vocabulary.coverage(texts.train, ids) <= 1


def test_a_head_that_does_not_fit_the_layout_is_not_written(llm, texts, tmp_path):
    s = student(llm, texts)
    tensors = s.exported()
    del tensors["norm.weight"]
    with pytest.raises(ConfigError, match=r"norm\.weight"):
        export.export_head(tmp_path / "head", s.config, tensors, s.target.ids, {})
    assert not (tmp_path / "head").exists()
    assert json.loads(json.dumps(export.head_config(s.config, "t", [], 3)))["draft_vocab_size"] == 200
