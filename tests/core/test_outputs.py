"""Speculative statistics: what each number counts, and vLLM's names for them."""

import pytest

from headstart.core.outputs import SpeculativeStats


def stats(*steps: tuple[int, int], k: int = 3) -> SpeculativeStats:
    out = SpeculativeStats(num_spec_tokens=k)
    for drafted, accepted in steps:
        out.add(drafted, accepted)
    return out


def test_counts():
    """Steps, drafts and accepted drafts; tokens per pass is accepted + 1 over steps, the rate is accepted / drafted."""
    s = stats((3, 3), (3, 0), (2, 1), (3, 2))
    assert (s.num_spec_steps, s.num_draft_tokens, s.num_accepted_draft_tokens) == (4, 11, 6)
    assert s.mean_acceptance_length == 1 + 6 / 4
    assert s.draft_acceptance_rate == 6 / 11
    assert s.acceptance_histogram == [1, 1, 1, 1]


def test_steps_without_drafts_leave_no_trace():
    """k = 0 is plain decoding and dilutes nothing."""
    assert stats((0, 0), (2, 1), (0, 0)) == stats((2, 1))


def test_nothing_drafted():
    """No division by zero; one token per pass, an all-zero histogram of k + 1 entries."""
    s = stats()
    assert (s.mean_acceptance_length, s.draft_acceptance_rate, s.acceptance_per_position) == (1.0, 0.0, [])
    assert s.acceptance_histogram == [0, 0, 0, 0]


@pytest.mark.parametrize("k", [1, 3, 7])
def test_histogram_has_k_plus_one_entries(k):
    """Entry j counts the steps that kept exactly j; it grows if a request asked for more than the configured k."""
    s = stats((1, 1), (1, 0), (1, 1), k=k)
    assert s.acceptance_histogram == [1, 2] + [0] * (k - 1)
    assert sum(j * n for j, n in enumerate(s.acceptance_histogram)) == s.num_accepted_draft_tokens
    assert stats((5, 5), k=3).acceptance_histogram == [0, 0, 0, 0, 0, 1]


def test_conditional_acceptance_with_variable_k():
    """a_i counts only the drafts at i that existed and whose predecessors all stood: a short draft is no rejection."""
    s = stats((3, 3), (3, 1), (1, 1), (2, 0), (2, 2))
    # position 0: 5 judged, 4 stood; position 1: judged in steps 1, 2, 5, stood in 1, 5; position 2: judged in step 1 only
    assert s.acceptance_per_position == [4 / 5, 2 / 3, 1.0]
    assert stats((3, 0)).acceptance_per_position == [0.0, 0.0, 0.0]


def test_as_dict_has_the_served_names():
    """The keys of vLLM's served object, plus two of ours; the values are plain and copyable."""
    d = stats((3, 2), (1, 1)).as_dict()
    assert set(d) == {
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "acceptance_histogram",
        "num_spec_steps",
        "num_accepted_draft_tokens",
        "num_draft_tokens",
        "num_spec_tokens",
        "per_step_accepted",
        "per_step_drafted",
        "acceptance_per_position",
        "drafters",
    }
    assert d["num_spec_tokens"] == 3
    assert d["per_step_drafted"] == [3, 1]
    assert d["per_step_accepted"] == [2, 1]
    assert d["acceptance_histogram"] == [0, 1, 1, 0]
