"""The command from end to end on a tiny target: what it leaves runs here, in transformers, and changes no answer."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from headstart import LLM, SamplingParams
from headstart.cli.main import run
from headstart.distill.export import head_shapes
from headstart.models.head import read_head_config
from tests.distill.conftest import QUICK


def call(capfd, *argv):
    capfd.readouterr()
    code = run(["distill", *map(str, argv)])
    return code, *capfd.readouterr()


def answers(target, **options):
    llm = LLM(str(target), dtype="float32", kv_cache_memory="64MiB", **options)
    prompts = ["the cat sat on the mat", "def f", "on the mat the cat", "x"]
    params = [SamplingParams(temperature=0, max_tokens=40), SamplingParams(temperature=1, seed=5, max_tokens=40)]
    return [o for p in params for o in llm.generate(prompts, p, use_tqdm=False)]


@pytest.mark.parametrize(("kind", "more"), [("head", {}), ("head", {"quantization": "int8"}), ("small", {})])
def test_a_draft_made_here_changes_no_answer(kind, more, target, request):
    draft = request.getfixturevalue(kind)
    config = {"model": str(draft), "num_speculative_tokens": 3, "adaptive": False, **more}
    plain, drafted = answers(target), answers(target, speculative_config=config)
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in drafted]
    stats = [o.metrics.speculative_decoding for o in drafted]
    asked, stood = sum(s.num_draft_tokens for s in stats), sum(s.num_accepted_draft_tokens for s in stats)
    assert asked > stood > 0


def test_a_head_has_the_layout_that_vllm_loads(head, target):
    said = json.loads((head / "config.json").read_text())
    assert said["speculators_model_type"] == "eagle3" and said["draft_vocab_size"] == 200
    config = read_head_config(said, 3)
    with safe_open(head / "model.safetensors", framework="pt") as f:
        shapes = {n: tuple(f.get_slice(n).get_shape()) for n in f.keys()}  # noqa: SIM118 - not a dict
        offsets, known = f.get_tensor("d2t"), f.get_tensor("t2d")
    assert shapes == head_shapes(config)
    assert offsets.dtype is torch.int64 and known.dtype is torch.bool
    assert torch.equal((torch.arange(200) + offsets).sort().values, known.nonzero().squeeze(1))


def test_a_small_model_assists_in_transformers(small, target):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    big, assistant = (AutoModelForCausalLM.from_pretrained(str(p), dtype=torch.float32) for p in (target, small))
    ids = AutoTokenizer.from_pretrained(str(small))("the cat sat", return_tensors="pt").input_ids
    options = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(big.generate(ids, **options), big.generate(ids, assistant_model=assistant, **options))
    assert assistant.config.num_hidden_layers == 1 and assistant.config.vocab_size == big.config.vocab_size


def test_the_report_says_what_was_found(head, target):
    found = json.loads((head / "report.json").read_text())
    assert found["data"]["tokens"] >= 800 and found["after"][0]["alpha"] >= found["before"][0]["alpha"] > 0
    assert found["points"][0]["step"] == 0 and found["points"][-1]["step"] == found["training"]["steps"]
    assert [s["temperature"] for s in found["speed"]] == [0.0, 1.0] and all(
        s["speedup"] > 0 and s["tokens_per_pass"] >= 1 for s in found["speed"]
    )
    page, card = (head / "report.html").read_text(), (head / "README.md").read_text()
    assert found["target"] == target.name and str(target) not in page + card + (head / "config.json").read_text(), (
        "where things lie here is nobody's business"
    )
    assert page.count("<svg") == 2 and "<script" not in page
    assert f"| 1 | {found['before'][0]['alpha']:.3f} | {found['after'][0]['alpha']:.3f} |" in card and "eagle3" in card
    assert f"{found['speed'][0]['speedup']:.2f}" in page and "times plain decoding" in card


def test_more_texts_go_on_from_those_that_are_there(head, target, capfd):
    lines = (head / "work" / "texts" / "texts.jsonl").read_text().splitlines()
    code, _, err = call(capfd, target, "--out", head, "--resume", *QUICK, "--draft-vocab", "200")
    assert code == 0, err
    assert (head / "work" / "texts" / "texts.jsonl").read_text().splitlines() == lines
    code, _, err = call(capfd, target, "--out", head, "--resume", *QUICK[:1], "900", *QUICK[2:], "--draft-vocab", "200")
    assert code == 2 and "other options or texts" in err and "delete it" in err
    assert (head / "work" / "texts" / "texts.jsonl").read_text().splitlines()[: len(lines)] == lines


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "many"), "300k"),
        (("--tokens", "0"), "300k"),
        (("--time-budget", "soon"), "30m"),
        (("--time-budget", "5m", "--epochs", "2"), "leave one of them out"),
        (("--kind", "heads"), "did you mean 'head'?"),
        (("--loss", "l2"), "did you mean 'kl'?"),
        (("--layers", "1"), "--kind model"),
        (("--kind", "model", "--taps", "1"), "--kind head"),
        (("--kind", "model", "--layers", "1", "--draft", "x"), "leave one of them out"),
        (("--taps", "a,b"), "8,18,30"),
        (("--taps", "1,2"), "must end with 3"),
        (("--kind", "model", "--layers", "3"), "from 1 to 2"),
        (("--draft-vocab", "3"), "--draft-vocab"),
        (("--unroll", "0"), "--unroll"),
        (("--learning-rate", "nan"), "--learning-rate"),
        (("--prompts", "missing.jsonl"), "missing.jsonl"),
        (("--exclude", "missing.jsonl"), "missing.jsonl"),
        (("--resume",), "leave --resume out"),
        (("--model", "other"), "contradicts"),
    ],
)
def test_mistakes_are_named_with_what_to_do(options, words, target, tmp_path, capfd):
    given = options if "--tokens" in options else (*options, "--tokens", "60", "--max-tokens", "12")
    code, _, err = call(capfd, target, "--out", tmp_path / "out", *given)
    assert code == 2 and words in err and err.count("\n") <= 8 and "Traceback" not in err, err


def test_nothing_is_overwritten(target, tmp_path, capfd):
    (tmp_path / "file").write_text("mine")
    code, _, err = call(capfd, target, "--out", tmp_path)
    assert code == 2 and "not empty" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_head_of_another_target_is_refused(head, target, tmp_path):
    from headstart.core.errors import ModelError
    from tests.tiny import write_llama, write_tokenizer

    size = len(write_tokenizer(tmp_path / "other").get_vocab())
    write_llama(tmp_path / "other", vocab=size, hidden=64, layers=3, max_len=128, eos=2)
    with pytest.raises(ModelError, match="hidden size 32"):
        LLM(str(tmp_path / "other"), dtype="float32", kv_cache_memory="64MiB", speculative_config={"method": "eagle3", "model": str(head)})
    with pytest.raises(ModelError, match="leave method='head' out"):
        LLM(str(target), dtype="float32", kv_cache_memory="64MiB", speculative_config={"method": "head", "model": str(tmp_path / "other")})


def test_texts_that_show_no_question_cost_the_measurement_only(llm, head):
    from headstart.core.errors import ConfigError
    from headstart.distill.data import Text
    from headstart.distill.gain import measure

    with pytest.raises(ConfigError, match="headstart bench"):
        measure(llm, head, 3, [Text(0, [], 0, 1.0, "")], lambda: False)
