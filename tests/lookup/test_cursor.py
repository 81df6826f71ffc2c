"""A cursor keeps its place in an expected text through changes, cuts and additions."""

from __future__ import annotations

import random

import pytest

from headstart.lookup.cursor import Cursor

EXPECTED = list(range(100, 160))


def at(text: list[int], expected: list[int] = EXPECTED) -> list[int]:
    cursor = Cursor(expected)
    cursor.follow([1, 2, 3, *text], 3)
    return list(cursor.draft(3))


def test_begins_at_the_beginning_and_ends_at_the_end():
    assert at([]) == [100, 101, 102]
    assert at(EXPECTED[:10]) == [110, 111, 112]
    assert at(EXPECTED[:58]) == [158, 159]
    assert at(EXPECTED) == []


@pytest.mark.parametrize(
    "text",
    [
        [*EXPECTED[:10], 5, *EXPECTED[11:14]],  # a change
        [*EXPECTED[:10], 5, 6, 7, 8, *EXPECTED[10:14]],  # an addition
        [*EXPECTED[:4], *EXPECTED[9:14]],  # a cut
        [5, 6, *EXPECTED[12:14]],  # another beginning
        [*EXPECTED[30:40], *EXPECTED[10:14]],  # parts in another order
    ],
)
def test_finds_its_place_again(text):
    assert at(text) == [114, 115, 116]


def test_of_equal_places_the_nearest_where_behind_counts_double():
    line = [1, 2, 3, 4]
    expected = [*line, 10, *line, 20, *line, 30, *line, 40]
    assert at([*line, 10, *line, 20, 9, 3, 4], expected)[0] == 30
    assert at([*line, 10, 1, 8, 4], expected)[0] == 20


def test_step_by_step_is_all_at_once():
    rng = random.Random(2)
    for _ in range(50):
        expected = [rng.randrange(12) for _ in range(60)]
        text = [t if rng.random() > 0.15 else rng.randrange(12) for t in expected]
        steps, once = Cursor(expected), Cursor(expected)
        end = 0
        while end < len(text):
            end = min(len(text), end + rng.randrange(1, 6))
            steps.follow(text[:end], 0)
        once.follow(text, 0)
        assert (steps.at, steps.agreed) == (once.at, once.agreed)
        assert steps.agreed == 0 or expected[steps.at - 1] == text[-1]
