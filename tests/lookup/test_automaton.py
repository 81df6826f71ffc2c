"""The suffix automaton against a search through the whole text."""

from __future__ import annotations

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.lookup.automaton import SuffixAutomaton

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=31)  # below the number of suffixes that are counted


def places(text: list[int], part: list[int]) -> list[int]:
    """Where a part ends in a text, one past it."""
    return [i for i in range(len(part), len(text) + 1) if text[i - len(part) : i] == part]


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.data())
def test_match_counts_and_ends_at_every_prefix(text, data):
    automaton = SuffixAutomaton()
    for size in range(1, len(text) + 1):
        automaton.extend(text[size - 1 : size])
        head = text[:size]
        longest = max((n for n in range(size) if len(places(head, head[size - n :])) > 1), default=0)
        assert automaton.match.length == longest
        if longest:
            found = places(head, head[size - longest :])
            state = automaton.match.state
            assert (automaton.count[state], automaton.end[state]) == (len(found), found[-1])
    part = text[(a := data.draw(st.integers(0, len(text) - 1))) : data.draw(st.integers(a + 1, len(text)))]
    state = 0
    for token in part:
        state = automaton.next[state][token]
    assert (automaton.count[state], automaton.end[state]) == (len(places(text, part)), places(text, part)[-1])


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_the_first_draft_followed_most_often_and_of_equals_last(text):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    state, length = automaton.match
    drafts = automaton.draft(state, 1)
    if length == 0:
        assert drafts == []
        return
    after = [text[i] for i in places(text, text[len(text) - length :]) if i < len(text)]
    last = {token: i for i, token in enumerate(after)}
    assert drafts == [max(last, key=lambda t: (after.count(t), last[t]))]


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 5)))
def test_in_one_piece_or_in_many(text, cuts):
    whole, pieces = SuffixAutomaton(), SuffixAutomaton()
    whole.extend(text)
    at = 0
    for cut in [*cuts, len(text)]:
        pieces.extend(text[at : at + cut])
        at += cut
    assert vars(whole) == vars(pieces)


def test_goes_on_periodically_and_stops_where_unsure():
    automaton = SuffixAutomaton()
    automaton.extend([1, 2, 3, 1, 2, 3])
    assert automaton.draft(automaton.match.state, 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    unsure = SuffixAutomaton()
    unsure.extend([9, 1, 9, 2, 9, 3, 9, 4, 9])
    state = unsure.match.state
    assert unsure.draft(state, 3, least=0.2)[0] == 4 and unsure.draft(state, 3, least=0.3) == []


def test_long_texts_cost_little_a_token_however_they_repeat():
    """At most two states a token, and no quadratic work on one token repeated for ever."""
    rng = random.Random(0)
    for text in ([7] * 20_000, [rng.randrange(1000) for _ in range(20_000)], [1, 2, 3, 4] * 5_000):
        automaton = SuffixAutomaton()
        start = time.process_time()
        automaton.extend(text)
        assert len(automaton.link) <= 2 * len(text)
        assert time.process_time() - start < 2.0  # about 0.1 s; squared work would take minutes
