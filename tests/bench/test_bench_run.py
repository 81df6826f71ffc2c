"""The run on a real engine: conversations go on with the arm's own answer, every arm does equal work, figures add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstart import LLM, SamplingParams
from headstart.bench import width
from headstart.bench.arms import make_arms
from headstart.bench.run import SPLIT, Answer, Group, Plan, Run, encode, execute, pairs
from headstart.bench.summary import document
from headstart.bench.workload import Question
from headstart.core.errors import ConfigError
from headstart.core.outputs import SpeculativeStats
from tests import tiny

QUESTIONS = [
    Question("a", "x", ("the cat", "on the mat", "the cat")),
    Question("b", "y", ("the the the the",)),
    Question("c", "x", ("def",)),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("model")
    tiny.write_llama(folder, vocab=len(tiny.write_tokenizer(folder)), max_len=256, eos=2)
    return LLM(str(folder), dtype="float64", device="cpu", kv_cache_memory="4MiB", max_num_seqs=4, seed=0)


def plan(**changes: object) -> Plan:
    return replace(Plan(QUESTIONS, SamplingParams(temperature=0, max_tokens=12)), **changes)  # type: ignore[arg-type]


def run(llm: LLM, plan: Plan, **options: object) -> Run:
    arms = make_arms(
        llm,
        [{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2, "num_speculative_tokens": 4, "adaptive": False}],
        **options,
    )  # type: ignore[arg-type]
    return execute(llm, arms, plan, lambda n: None, lambda: False)


def test_turns_go_on_with_the_own_answer(llm: LLM) -> None:
    done = run(llm, plan(batches=(1, 2)), synthetic=[(0.5, 3)])
    assert not llm.engine.has_work
    for group in done.groups:
        for name in {q.id for q in QUESTIONS}:
            own = sorted((a for a in group.answers if a.question.id == name and a.slot == group.answers[0].slot), key=lambda a: a.turn)
            messages: list[dict[str, str]] = []
            for a in own:
                messages.append({"role": "user", "content": a.question.turns[a.turn]})
                assert a.prompt_ids == encode(llm, messages)
                skip = llm.get_tokenizer().decode(a.token_ids, skip_special_tokens=True)
                messages.append({"role": "assistant", "content": skip})
    assert {g.arm for g in done.groups} == {"plain", "ngram k=4", "synthetic 0.5 k=3"}
    assert len([g for g in done.groups if g.batch == 1]) == 9 and len([g for g in done.groups if g.batch == 2]) == 6
    for arm in ("ngram k=4", "synthetic 0.5 k=3"):
        both = list(pairs(done, arm, 2, 0.0))
        assert len(both) >= 5 and all(p.token_ids == a.token_ids and p.prompt_ids == a.prompt_ids for p, a in both)


def test_arms_take_turns_and_a_full_progress_is_told(llm: LLM) -> None:
    told: list[int] = []
    p = plan(repeats=2, batches=(1, 4))
    arms = make_arms(llm, [{"method": "ngram", "num_speculative_tokens": k, "adaptive": False} for k in (2, 3)])
    assert arms[1].drafter is arms[2].drafter
    done = execute(llm, arms, p, told.append, lambda: False)
    assert sum(told) == p.answers(3)
    first = [g.arm for g in done.groups if g.batch == 1 and g.repeat == 0][::3]
    assert len(set(first)) == 3, "another arm runs first each time"


def test_no_prompt_is_remembered_between_arms(llm: LLM) -> None:
    run(llm, plan(warmup=0))
    assert llm.engine.pool.hits > 0, "within a conversation it is"
    before = llm.engine.pool.hits
    run(llm, plan(questions=QUESTIONS[1:], warmup=0))
    assert llm.engine.pool.hits == before


def test_the_drafter_cannot_change_amid_requests(llm: LLM) -> None:
    llm.engine.add("x", None, [5], SamplingParams(max_tokens=2))
    with pytest.raises(ConfigError, match="between requests"):
        llm.engine.use(make_arms(llm, [])[0].drafter, 0, "rejection")
    llm.engine.abort("x")


def test_width_curve(llm: LLM) -> None:
    curve = width.measure(llm, (1, 2, 5), batch=2)
    assert list(curve) == [1, 2, 5] and all(t > 0 for t in curve.values())
    assert width.measure(llm, (1, 10_000)) == {} or max(width.measure(llm, (1, 10_000))) == 1
    llm.engine.pool.check()


def test_figures(llm: LLM) -> None:
    """A run written by hand: what comes out can be worked out on paper."""
    arms = make_arms(llm, [{"method": "ngram", "num_speculative_tokens": 2, "adaptive": False}])
    done = Run(plan(), arms)
    for arm, bursts, drafted, accepted in (
        ("plain", [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)], [], []),
        ("ngram k=2", [(1.0, 1), (1.5, 3), (2.0, 4)], [2, 2], [1, 0]),
    ):
        for q in QUESTIONS[:2]:
            stats = SpeculativeStats(2, list(drafted), list(accepted))
            answer = Answer(q, 0, 0, [1, 2], [7, 8, 9, 10], list(bursts), len(bursts), stats, 0)
            split = {**dict.fromkeys(SPLIT, 0.0), "prefill": 1.0, "draft": 0.2, "target": 0.8}
            done.groups.append(Group(arm, 1, 0.0, 0, int(q.id == "b"), [answer], bursts[-1][0], split, len(bursts) - 1, len(drafted) * 2))
    found = document(llm, done, "by hand", {1: {1: 1.0, 3: 1.0}}, [])
    plain, fast = (r["overall"] for r in found["results"])
    assert plain["user_tokens_per_second"] == plain["total_tokens_per_second"] == 1.0 and plain["tpot"] == plain["itl_p50"] == 1.0
    assert fast["speedup"]["median"] == 2.0 and fast["speedup"]["questions"] == 2 and fast["decode_speedup"]["median"] == 3.0
    assert fast["ttft"] == 1.0 and fast["tpot"] == pytest.approx(1 / 3) and fast["itl_p99"] == 0.5
    assert (fast["drafted"], fast["accepted"], fast["wasted_rows"]) == (8, 2, 6)
    assert fast["acceptance_per_position"] == [0.5, 0.0] and fast["acceptance_histogram"] == [2, 2, 0]
    assert fast["draft_seconds"] == pytest.approx(0.4 / 8) and fast["split"]["prefill"] == 2.0
    # Two of three steps a question drafted 2: (2 * 1.5 + 1) tokens in 2 * 1.1 + 1 passes' time.
    assert fast["predicted_speedup"] == pytest.approx(4 / 3.2)
    assert found["results"][1]["categories"]["y"]["answers"] == 1
    # 4 tokens in 3 passes cannot be twice as fast.
    assert found["notes"][-1].startswith("in 2 of 2 answers the speed-up exceeds tokens per pass")


def test_nothing_fits(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no question fits"):
        run(llm, plan(params=SamplingParams(temperature=0, max_tokens=255)))
