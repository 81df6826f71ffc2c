"""`headstart analyse`: the forms of its report, what it says of drafts that cannot be used, and one line for every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.interrupts import SoonAsked

Call = Callable[..., tuple[int, str, str]]
SMALL = ("--max-tokens", 24, "--dtype", "float32", "--kv-cache-memory", "8MiB", "-k", 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "questions.jsonl"
    turns = [("ships", "the harbour master keeps a list"), ("ships", "each morning"), ("names", "names of new ships and names")]
    file.write_text("\n".join(json.dumps({"category": c, "turns": [t]}) for c, t in turns))
    return file


def test_forms_of_one_report(headstart: Call, tiny: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    forms = ("--out", tmp_path / "out", "--plot", tmp_path / "out.png")
    drafts = ("--draft", "ngram", "--draft", "suffix", "--draft", tiny, "--measure-all", "-t", "0.9")
    code, out, err = headstart("analyse", tiny, *drafts, "--data", data, *SMALL, *forms)
    assert code == 0, err
    assert "the target's vocabulary" in err and "written:" in err
    found = json.loads((tmp_path / "out/analysis.json").read_text())
    names = ["ngram", "suffix", tiny.name]
    assert [d["name"] for d in found["drafters"]] == names and set(found["measured"]) == set(names) and found["version"] == 1
    own = found["drafters"][2]
    assert own["alpha"] == pytest.approx(1) and len(own["speedup"]) == len(own["tokens_per_pass"]) == 4
    assert own["cost"] > 0.2 and set(own["rules"]) == {"rejection", "block", "match", "greedy draft"}
    for words in (
        "Ranking",
        "Predicted and measured",
        "KL(p, q)",
        "By entropy",
        "By category",
        "Alpha by the draft's own",
        "A step of m rows",
        "ships",
    ):
        assert words in out
    page = (tmp_path / "out/analysis.html").read_text()
    assert page.count("<svg") == 7 and "KL does not rank drafts" in page and 'class="a4"' in page and "<polygon" in page
    for outside in ("http:", "https:", "<script", "@import", "url(", "src="):
        assert outside not in page
    for drawing in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + drawing.partition("</svg>")[0] + "</svg>")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")

    plan = headstart("plan", tiny, "--draft", "suffix", "--analysis", tmp_path / "out/analysis.json", "--device", "h100")
    assert plan[0] == 0 and "suffix, as analysed" in plan[1]


def test_json_and_own_answers(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"prompt": "the list of ships", "answer": "the list of ships the list of ships the list"}))
    code, out, err = headstart("analyse", "-m", tiny, "--draft", "ngram", "--answers", answers, *SMALL, "--json")
    found = json.loads(out)
    assert code == 0 and not err and found["workload"]["texts"] == 1 and found["drafters"][0]["tokens_per_pass"][3] > 1


def test_text_of_models_is_escaped(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"prompt": "x", "answer": "<script>alert(1)</script>", "category": "<b>bold"}))
    headstart("analyse", tiny, "--draft", "ngram", "--answers", answers, *SMALL, "--out", tmp_path, "--quiet")
    page = (tmp_path / "analysis.html").read_text()
    assert "<script" not in page and "<b>bold" not in page and "&lt;" in page


def test_an_interrupted_run_reports_what_it_has(headstart: Call, tiny: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.cli.analyse.Interruptible", lambda: SoonAsked(30))
    code, out, _ = headstart("analyse", tiny, "--draft", "ngram", "--data", data, *SMALL)
    assert code == 130 and "INTERRUPTED" in out and "Ranking" in out
    monkeypatch.setattr("headstart.cli.analyse.Interruptible", lambda: SoonAsked(1))
    code, out, err = headstart("analyse", tiny, "--draft", "ngram", "--data", data, *SMALL)
    assert code == 2 and not out and "fewer questions" in err


def test_another_vocabulary_is_explained(headstart: Call, tiny: Path, tmp_path: Path) -> None:
    from tests import tiny as other

    other.write_llama(tmp_path, vocab=len(other.write_tokenizer(tmp_path)))
    code, out, err = headstart("analyse", tiny, "--draft", tmp_path, "--limit", 1, *SMALL)
    assert code == 0 and "ids stand for the same string" in err and "id 0 is" in err and tmp_path.name in out  # it is translated
    same_only = json.dumps({"model": str(tmp_path), "use_heterogeneous_vocab": False})
    code, out, err = headstart("analyse", tiny, "--draft", same_only, *SMALL)
    assert code == 2 and not out and "ids stand for the same string" in err.splitlines()[-1]


BAD = [
    ((), "--draft ngram"),
    (("--draft", "none"), "nothing to judge"),
    (("--draft", "nothing"), "nothing"),
    (("--draft", "{x}"), "is not JSON"),
    (("--draft", '{"method": "ngram", "modle": "x"}'), "modle"),
    (("--draft", '{"method": "ngram", "verify": "match"}'), "set --verify"),
    (("--draft", '{"method": "ngram", "adaptive": true}'), "leave it out"),
    (("--draft", "ngram:int8"), "quantization='int8' has no effect"),
    (("--draft", "/nonexistent/draft:int8"), "/nonexistent/draft"),
    (("--draft", "ngram", "--draft", "ngram"), "called 'ngram"),
    (("--draft", "ngram", "--draft-temperature", "1"), "no effect"),
    (("--draft", "ngram", "-k", "0"), "--num-speculative-tokens"),
    (("--draft", "ngram", "-t", "-1"), "temperature"),
    (("--draft", "ngram", "--limit", "0"), "--limit"),
    (("--draft", "ngram", "--verify", "lossy"), "lossy"),
    (("--draft", "ngram", "--data", "/nonexistent/q.jsonl"), "/nonexistent/q.jsonl"),
    (("--draft", "ngram", "--answers", "/nonexistent/a.jsonl"), "/nonexistent/a.jsonl"),
    (("--draft", "ngram", "--answers", "a", "--data", "b"), "leave one"),
    (("--draft", "ngram", "--answers", "a", "--measure"), "--data instead"),
    (("--draft", "ngram", "--plot", "x.txt"), ".png"),
    (("--draft", "ngram", "--out", "/dev/null/x"), "--out /dev/null/x"),
    (("--draft", "ngram", "-m", "elsewhere"), "two targets"),
    (("--draft", "ngram", "--max-tokens", "900"), "no question fits"),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=lambda v: " ".join(v) if isinstance(v, tuple) else None)
def test_bad_input_is_one_line_and_exit_code_2(headstart: Call, tiny: Path, argv: tuple[str, ...], words: str) -> None:
    code, out, err = headstart("analyse", tiny, "--dtype", "float32", "--kv-cache-memory", "8MiB", *argv)
    errors = [line for line in err.splitlines() if line.startswith("headstart: error: ")]
    assert code == 2 and not out and len(errors) == 1 and words in errors[0], err
