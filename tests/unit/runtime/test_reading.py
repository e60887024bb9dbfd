"""Prompts cut into units: every row once, in order, in pieces the buckets hold; and what does not fit at all."""

import pytest
from hand_sequences import BUCKETS, counted
from hypothesis import given
from hypothesis import strategies as st

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.prefix import Prompt
from molmo2_iree.runtime.reading import Extend, Look, Prefill, check_room, plan_reading


def plan(prompt: Prompt, reused: int = 0, known: tuple[str, ...] = ()) -> list[object]:
    return list(plan_reading(prompt, reused, known, BUCKETS))


def test_the_examples() -> None:
    pieces = [Extend(128, 192), Extend(192, 256), Extend(256, 300)]
    assert plan(counted(300)) == [Prefill(128), *pieces]
    picture = counted(300, 200, ("a",), (5,))
    assert plan(picture) == [Look(0, 0, 3, False), Look(0, 3, 5, True), Prefill(256), Extend(256, 300)]


def test_short_prompts_are_one_unit() -> None:
    assert plan(counted(1)) == [Prefill(1)]
    assert plan(counted(128)) == [Prefill(128)]
    assert plan(counted(129)) == [Prefill(128), Extend(128, 129)]
    assert plan(counted(140, 139, ("a",), (3,))) == [Look(0, 0, 3, True), Prefill(140)]


def test_known_and_repeated_pictures_are_not_looked_at() -> None:
    prompt = counted(140, 100, ("a", "b", "a"), (3, 2, 3))
    assert plan(prompt, known=("a", "b")) == [Prefill(128), Extend(128, 140)]
    assert plan(prompt, known=("a",)) == [Look(1, 0, 2, True), Prefill(128), Extend(128, 140)]
    assert plan(prompt)[:3] == [Look(0, 0, 3, True), Look(1, 0, 2, True), Prefill(128)]


def test_a_kept_prefix_is_not_read() -> None:
    assert plan(counted(300, 200, ("a",), (5,)), reused=299) == [Extend(299, 300)]
    assert plan(counted(300), reused=100) == [Extend(100, 164), Extend(164, 228), Extend(228, 292), Extend(292, 300)]


@given(st.integers(1, 1000), st.data())
def test_every_row_once_and_in_order(length: int, data: st.DataObject) -> None:
    crops = tuple(data.draw(st.lists(st.integers(2, 9), max_size=3)))
    image_end = data.draw(st.integers(1, min(length, 256))) if crops else 0
    prompt = counted(length, image_end, tuple(map(str, range(len(crops)))), crops)
    reused = data.draw(st.integers(image_end, length - 1)) if image_end < length and data.draw(st.booleans()) else 0
    units = plan(prompt, reused)
    at, looked = reused, dict.fromkeys(range(len(crops)), 0)
    for unit in units:
        if isinstance(unit, Look):
            assert at == 0
            assert unit.first == looked[unit.image] < unit.last <= unit.first + BUCKETS.crops[0]
            assert unit.whole == (unit.last == crops[unit.image])
            looked[unit.image] = unit.last
        elif isinstance(unit, Prefill):
            assert at == 0
            assert image_end <= unit.stop <= 256
            at = unit.stop
        else:
            assert isinstance(unit, Extend)
            assert unit.start == at >= image_end
            assert 1 <= unit.stop - unit.start <= 64
            at = unit.stop
    assert at == length
    assert reused or looked == dict(enumerate(crops))
    assert isinstance(units[-1], Prefill | Extend)


def test_what_fits() -> None:
    check_room(counted(1000), 24, BUCKETS, 1024)
    check_room(counted(1023, 256, ("a",), (9,)), 1, BUCKETS, 1024)
    check_room(counted(1), 1023, BUCKETS, 1024)


@pytest.mark.parametrize("tokens", [25, 0, -1, 2**70, 1.5, True, None, "3"])
def test_prompt_and_answer_must_fit_the_context(tokens: object) -> None:
    words = r"max tokens, after a prompt of 1000 in a context of 1024: got .*expected 1 to 24"
    with pytest.raises(RequestError, match=words):
        check_room(counted(1000), tokens, BUCKETS, 1024)  # pyright: ignore


def test_a_prompt_that_does_not_fit() -> None:
    with pytest.raises(RequestError, match="prompt: got 1024 tokens, expected at most 1023: the context holds 1024"):
        check_room(counted(1024), 1, BUCKETS, 1024)
    with pytest.raises(RequestError, match="got 257 tokens up to the end of 2 pictures, expected at most 256"):
        check_room(counted(300, 257, ("a", "b"), (3, 3)), 1, BUCKETS, 1024)
