"""Drafters of others: found by name, refused in words, and never able to change an answer."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from headstart import draft
from headstart.core import methods, plugins
from headstart.core.errors import ConfigError, ModelError
from headstart.core.params import SamplingParams
from headstart.core.speculation import SpeculativeConfig
from headstart.draft.base import DraftContext
from tests.doubles import EchoModel, make_engine, plain, run, totals
from tests.draft.foreign_drafters import Broken, Repeats

HERE = "tests.draft.foreign_drafters"
PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2]]
CONTEXT = DraftContext(None, 30, torch.float64, torch.device("cpu"), 64, 0, None, print)


def build(**config):
    return draft.build(SpeculativeConfig.from_dict(config), CONTEXT)


def test_by_dotted_name_as_in_vllm_and_by_entry_point(monkeypatch):
    assert isinstance(build(method=f"{HERE}:Repeats"), Repeats)
    assert build(method=f"{HERE}:Repeats", options={"times": 9}).times == 9
    assert isinstance(build(method="custom_class", model=f"{HERE}.Repeats"), Repeats)
    entry = EntryPoint("repeats", f"{HERE}:Repeats", plugins.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name="repeats": [entry] if name == "repeats" else [])
    assert isinstance(build(method="repeats"), Repeats)
    with pytest.raises(ConfigError, match="did you mean 'repeats'"):
        build(method="repaets")


def test_it_drafts_and_the_answer_is_the_same():
    target = EchoModel(vocab=30, local=6.0)
    params = SamplingParams(temperature=0, max_tokens=60)
    outputs = run(make_engine(target, build(method=f"{HERE}:Repeats"), random_k=3), PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [plain(target, p, params, 0) for p in PROMPTS]
    drafted, accepted = totals(outputs)
    assert drafted > accepted > 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"method": f"{HERE}:Nothing"}, "Nothing"),
        ({"method": "no_such_package.module:Drafter"}, "PYTHONPATH"),
        ({"method": f"{HERE}:refuses"}, "something is missing"),
        ({"method": f"{HERE}:no_drafter"}, "must be a headstart.Drafter"),
        ({"method": f"{HERE}:HERE.x"}, "cannot be made"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(config, words):
    with pytest.raises(ModelError, match=words):
        build(**config)


def test_configurations_that_cannot_be(monkeypatch):
    for config, words in (
        ({"method": "custom_class"}, "package.module.Class"),
        ({"method": "custom_class", "model": "Class"}, "package.module.Class"),
        ({"method": f"{HERE}:Repeats", "prompt_lookup_max": 3}, "belongs to ngram"),
        ({"method": "ngram", "options": {}}, "belongs to a drafter of others"),
    ):
        with pytest.raises(ConfigError, match=words):
            SpeculativeConfig.from_dict(config)
    monkeypatch.setattr(methods, "foreign_names", lambda: ["theirs"])
    with pytest.raises(ConfigError, match="theirs"):
        SpeculativeConfig(method="their")


BROKEN = ["raises", "nothing", "too few", "no proposal", "no tokens", "too many", "foreign id", "negative id", "floats", "text"]
BROKEN += ["law of another shape", "law of one row", "law that is no law", "negative law", "nan law", "law of integers"]
BROKEN += ["law with a negative number", "law with a nan", "law without its draft"]
BROKEN += ["law that is a list", "observe raises", "forget raises"]


@pytest.mark.parametrize("rule", ["rejection", "match"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_one_costs_speed_and_one_warning(how, rule, caplog):
    """Sampled in `match` mode and greedily, the tokens are those of plain decoding, and the log has one line."""
    target = EchoModel(vocab=30)
    params = [SamplingParams(temperature=float(rule == "match"), max_tokens=20, seed=s) for s in (1, 2)]
    outputs = run(make_engine(target, Broken(how), rule=rule), PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [plain(target, q, p, p.seed) for q, p in zip(PROMPTS, params, strict=True)]
    assert len(caplog.records) == 1 and "Broken" in caplog.text
    assert (totals(outputs)[0] > 0) is (how == "too many" or "law" in how or (how.endswith("raises") and how != "raises"))


@pytest.mark.parametrize("how", ["array", "tensor"])
def test_arrays_of_integers_are_integers(how, caplog):
    target = EchoModel(vocab=30)
    outputs = run(make_engine(target, Broken(how)), PROMPTS, SamplingParams(temperature=0, max_tokens=20))
    assert totals(outputs)[0] > 0 and not caplog.records


def test_naming_one_imports_nothing():
    sys.modules.pop("tests.draft.never_imported", None)
    SpeculativeConfig(method="tests.draft.never_imported:Drafter")
    assert "tests.draft.never_imported" not in sys.modules
