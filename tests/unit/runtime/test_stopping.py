"""Stop strings, wherever the pieces of a text are cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.stopping import Stopping, StopText, check_stopping


def pushed(strings: tuple[str, ...], *pieces: str) -> tuple[list[str], str, bool]:
    """What each push lets through, what the flush gives, and whether it stopped."""
    text = StopText(strings)
    shown = [text.push(piece) for piece in pieces]
    stopped = text.stopped
    return shown, text.flush(), stopped


def test_the_example() -> None:
    assert pushed(("end",), "the e", "n", "d!") == (["the ", "", ""], "", True)


@pytest.mark.parametrize(
    ("strings", "pieces", "shown", "flushed", "stopped"),
    [
        ((), ["a", "b"], ["a", "b"], "", False),
        (("b",), ["abc", "d"], ["a", ""], "", True),
        (("end",), ["the e", "n", "x"], ["the ", "", "enx"], "", False),
        (("end",), ["the en"], ["the "], "en", False),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], "", True),
        (("aab", "ac"), ["aa", "c"], ["", "a"], "", True),
        (("abc", "b"), ["ab", "c"], ["a", ""], "", True),
        (("xyz", "y"), ["..x", "y"], ["..", "x"], "", True),
        (("\n\n",), ["a\n", "b\n", "\n"], ["a", "\nb", ""], "", True),
        (("é",), ["caf", "é!"], ["caf", ""], "", True),
        (("end",), ["end", "more", "end"], ["", "", ""], "", True),
    ],
)
def test_pieces(strings: tuple[str, ...], pieces: list[str], shown: list[str], flushed: str, stopped: bool) -> None:
    assert pushed(strings, *pieces) == (shown, flushed, stopped)


words = st.text("ab\n", max_size=12)


@given(st.lists(words, max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_cuts_change_nothing(pieces: list[str], strings: list[str]) -> None:
    whole = "".join(pieces)
    starts = [at for at in map(whole.find, strings) if at >= 0]
    # the earliest complete string wins: of those that end first in the stream, the one that begins first
    shown, flushed, stopped = pushed(tuple(strings), *pieces)
    said = "".join(shown) + flushed
    assert stopped == bool(starts)
    assert whole.startswith(said)
    if not starts:
        assert said == whole
    assert not any(string in said for string in strings)


@given(st.lists(words, max_size=8), st.text("ab\n", min_size=1, max_size=4))
def test_one_string_stops_where_it_first_stands(pieces: list[str], string: str) -> None:
    shown, flushed, _ = pushed((string,), *pieces)
    assert "".join(shown) + flushed == "".join(pieces).split(string)[0]


@given(st.text("ab\n", max_size=20), st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_than_a_string_may_need(text: str, strings: list[str]) -> None:
    stop = StopText(strings)
    for k, character in enumerate(text):
        if stop.stopped:
            return
        shown = stop.push(character)
        held = stop._held
        assert not shown or not any(string.startswith(shown[-1] + held) for string in strings) or stop.stopped
        assert held == "" or any(string.startswith(held) for string in strings), k


REFUSED: list[tuple[Stopping, str]] = [
    (Stopping(strings=("",)), r"stop\[0\]: got an empty string"),
    (Stopping(strings=("a",) * 1000), "number of stop strings: got 1000, expected 0 to 16"),
    (Stopping(strings=("a", "x" * 257)), r"characters of stop\[1\]: got 257, expected 1 to 256"),
    (Stopping(strings=("a\ud800",)), "lone surrogate"),
    (Stopping(strings=(3,)), r"stop\[0\]: got int, expected str"),  # pyright: ignore
    (Stopping(strings="end"), "stop: got str, expected tuple"),  # pyright: ignore
    (Stopping(ids=(512,)), r"stop ids\[0\]: got 512, expected 0 to 511"),
    (Stopping(ids=(-1,)), r"stop ids\[0\]: got -1"),
    (Stopping(ids=(1,) * 65), "number of stop ids: got 65"),
    (Stopping(ids=[1]), "stop ids: got list, expected tuple"),  # pyright: ignore
]


@pytest.mark.parametrize(("stopping", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_what_is_refused(stopping: Stopping, expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        check_stopping(stopping, 512)


def test_what_is_taken() -> None:
    check_stopping(Stopping(), 512)
    check_stopping(Stopping(("\n", "x" * 256), (0, 511), ignore_end=True), 512)
    wrong: Any = None
    with pytest.raises(RequestError, match="expected Stopping"):
        check_stopping(wrong, 512)
