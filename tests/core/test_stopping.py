"""Where generation ends: by id, by length, by text, at the same place however the text arrives."""

from random import Random

import pytest

from headstart.core.params import SamplingParams
from headstart.core.stopping import find_stop, held_back, stop_at
from headstart.core.types import Sequence

PROMPT = [1, 2, 3]


def sequence(output, eos_ids=(9,), max_len=100, **params) -> Sequence:
    tokens = PROMPT + output
    return Sequence(0, "r", 0, SamplingParams(**params), tokens, len(PROMPT), seed=0, eos_ids=tuple(eos_ids), max_len=max_len)


# stop_at


def test_goes_on():
    """An ordinary token below every limit ends nothing; a stop id further back does not count."""
    assert stop_at(sequence([5], max_tokens=5)) is None
    assert stop_at(sequence([9, 8, 5], max_tokens=5, stop_token_ids=[8])) is None
    assert stop_at(sequence([5], eos_ids=(), max_tokens=None)) is None


def test_eos():
    """Any of several EOS ids, with stop_reason None; ignore_eos generates past it."""
    for token in (8, 9):
        assert stop_at(sequence([5, token], eos_ids=(8, 9))) == ("stop", None)
        assert stop_at(sequence([5, token], eos_ids=(8, 9), ignore_eos=True)) is None
    assert stop_at(sequence([5, 7], eos_ids=(8, 9))) is None


def test_stop_id():
    """The id is the stop_reason; it holds with ignore_eos, even for the EOS id itself."""
    assert stop_at(sequence([7], stop_token_ids=[6, 7])) == ("stop", 7)
    assert stop_at(sequence([7], stop_token_ids=[7], ignore_eos=True)) == ("stop", 7)
    assert stop_at(sequence([9], stop_token_ids=[9], ignore_eos=True)) == ("stop", 9)
    assert stop_at(sequence([0], stop_token_ids=[0])) == ("stop", 0)


def test_length():
    """max_tokens and the context limit, whichever comes first; ignore_eos does not lift them."""
    assert stop_at(sequence([5, 5], max_tokens=3)) is None
    assert stop_at(sequence([5, 5, 5], max_tokens=3)) == ("length", None)
    assert stop_at(sequence([5, 5], max_len=5, max_tokens=3)) == ("length", None)
    assert stop_at(sequence([5, 5], max_len=5, max_tokens=None)) == ("length", None)
    assert stop_at(sequence([9, 9, 9], max_tokens=3, ignore_eos=True)) == ("length", None)


def test_stop_comes_before_length():
    """EOS or a stop id at the last allowed position is a stop, not a length."""
    assert stop_at(sequence([5, 5, 9], max_tokens=3)) == ("stop", None)
    assert stop_at(sequence([5, 5, 7], max_tokens=3, stop_token_ids=[7])) == ("stop", 7)
    assert stop_at(sequence([5, 9], max_len=5)) == ("stop", None)


def test_a_burst_ends_at_its_first_stop():
    """Several tokens of one step, taken in order: the end falls where plain decoding puts it."""
    seq = sequence([], max_tokens=5, stop_token_ids=[7])
    for token in (10, 11, 7, 20, 21):
        seq.tokens.append(token)
        if end := stop_at(seq):
            break
    assert (seq.output, end) == ([10, 11, 7], ("stop", 7))


# find_stop


def test_earliest_stop_wins():
    """The one that starts first; at the same place the first listed."""
    assert find_stop("a STOP b END", 12, ["END", "STOP"]) == (2, "STOP")
    assert find_stop("xabc", 4, ["abc", "ab"]) == (1, "abc")
    assert find_stop("xabc", 4, ["ab", "abc"]) == (1, "ab")
    assert find_stop("aXbX", 4, ["X"]) == (1, "X")
    assert find_stop("abc", 3, []) is None
    assert find_stop("", 0, ["x"]) is None


@pytest.mark.parametrize(
    ("text", "new", "found"), [("ab END", 1, 3), ("ab END", 6, 3), ("ab ENDc", 1, None), ("ab ENDc", 2, 3), ("END", 0, None)]
)
def test_ends_within_the_new_characters(text, new, found):
    """It may start in old text but must end in new; what was judged before is not found again."""
    assert find_stop(text, new, ["END"]) == (None if found is None else (found, "END"))


def test_any_chunking_finds_the_same_place():
    """Text that arrives in random pieces stops where it stops in one piece, stops spanning the borders included."""
    rng = Random(0)
    spanning = 0
    for _ in range(500):
        text = "".join(rng.choice("abc") for _ in range(25))
        stop = "".join(rng.choice("abc") for _ in range(rng.randint(1, 4)))
        shown, found = 0, None
        while shown < len(text) and found is None:
            new = min(rng.randint(1, 5), len(text) - shown)
            shown += new
            found = find_stop(text[:shown], new, [stop])
        assert (found or (-1, stop))[0] == text.find(stop)
        spanning += found is not None and found[0] < shown - new
    assert spanning > 50


# held_back


@pytest.mark.parametrize(
    ("text", "stops", "held"),
    [
        ("hello", ["STOP"], 0),
        ("hello S", ["STOP"], 1),
        ("hello STO", ["STOP"], 3),
        ("hello STOx", ["STOP"], 0),
        ("aab", ["aabaac"], 3),
        ("x\n", ["\n\nUser", "\nUser:"], 1),
        ("ab", ["abX", "bYYY"], 2),
        ("", ["STOP"], 0),
        ("ST", [], 0),
        ("x", ["x"], 0),
    ],
)
def test_held_back(text, stops, held):
    """The longest ending that a stop string may still begin with; a whole stop is `find_stop`'s business."""
    assert held_back(text, stops) == held


def test_nothing_shown_is_taken_back():
    """Streaming with what `held_back` allows never shows a character of a stop string that follows, and hides nothing else."""
    rng = Random(1)
    stopped = 0
    for _ in range(500):
        text = "".join(rng.choice("ab") for _ in range(15))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(2, 5))) for _ in range(2)]
        shown = ""
        for n in range(1, len(text) + 1):
            if find := find_stop(text[:n], 1, stops):
                assert len(shown) <= find[0]
                stopped += 1
                break
            shown = text[: n - held_back(text[:n], stops)]
            assert any(s.startswith(text[len(shown) : n]) for s in stops)
    assert stopped > 100
