"""Which rows a prompt may go on from, what makes two pictures the same, and a cache that keeps to its budget."""

import dataclasses

import numpy as np
import pytest
from hand_sequences import counted, kept, words
from hypothesis import given
from hypothesis import strategies as st
from runtime_requests import CAT, noise, pictured, text

from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.prefix import PictureCache, picture_digest, read_prompt, shared_rows

few = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def test_the_example() -> None:
    before = kept(1, 2, 3)
    assert shared_rows(before, words(1, 2, 4)) == 2
    assert shared_rows(before, words(1, 2, 3, 9)) == 3
    assert shared_rows(before, words(1, 2, 3)) == 2
    assert shared_rows(before, words(7)) == 0
    assert shared_rows(before, words(1)) == 0
    assert shared_rows(None, words(1, 2)) == 0


@given(few, few)
def test_shared_rows_are_equal_and_leave_one_to_read(first: list[int], second: list[int]) -> None:
    shared = shared_rows(kept(*first), words(*second))
    assert 0 <= shared < len(second)
    assert first[:shared] == second[:shared]
    assert shared in (len(first), len(second) - 1) or first[shared] != second[shared]


def test_the_whole_image_part_of_both_must_be_shared() -> None:
    ids = range(9)
    prompt = counted(10, image_end=6, digests=("a",))
    assert shared_rows(kept(*ids, image_end=6, digests=("a",)), prompt) == 9
    assert shared_rows(kept(*ids[:6], image_end=6, digests=("a",)), prompt) == 6
    cut = dataclasses.replace(prompt, ids=np.array([*range(5), 99, 6, 7], np.int32))
    assert shared_rows(kept(*ids, image_end=6, digests=("a",)), cut) == 0
    assert shared_rows(kept(*ids, image_end=9, digests=("a",)), dataclasses.replace(prompt, image_end=7)) == 9
    later = dataclasses.replace(prompt, ids=np.array([*range(7), 99, 8], np.int32))
    assert shared_rows(kept(*ids, image_end=6, digests=("a",)), later) == 7
    assert shared_rows(kept(*ids, image_end=8, digests=("a",)), later) == 0


@pytest.mark.parametrize("others", [(), ("b",), ("a", "b"), ("b", "a")])
def test_other_pictures_share_nothing(others: tuple[str, ...]) -> None:
    before = kept(*range(9), image_end=3, digests=("a",))
    assert shared_rows(before, counted(12, 3, ("a",))) == 9
    assert shared_rows(before, counted(12, 3, others)) == 0


def test_a_prompt_of_a_payload(model: Model) -> None:
    payload = pictured(model, [CAT, noise(1)])
    prompt = read_prompt(payload)
    assert prompt.image_end == max(np.flatnonzero(payload.types)) + 1 < len(payload.ids)
    assert prompt.crops == tuple(payload.crops)
    assert len(set(prompt.digests)) == 2
    words_alone = read_prompt(text(model))
    assert (words_alone.image_end, words_alone.digests, words_alone.crops) == (0, (), ())


def test_a_digest_depends_on_everything_the_stages_read(model: Model) -> None:
    image = pictured(model, [noise(1)]).image(0)
    other = image.patches.copy()
    other[-1, -1, -1] = np.nextafter(other[-1, -1, -1], np.float32(9))
    groups = image.groups.copy()
    groups[0, 0] = -1
    changed = [
        dataclasses.replace(image, patches=other),
        dataclasses.replace(image, groups=groups),
        dataclasses.replace(image, grid=(*image.grid[:3], 9)),
        dataclasses.replace(image, patches=image.patches[:, :, ::-1]),
    ]
    digests = [picture_digest(image), *map(picture_digest, changed)]
    assert len(set(digests)) == 5
    assert picture_digest(pictured(model, [noise(2), noise(1)]).image(1)) == digests[0]


def tokens(count: int) -> np.ndarray:
    return np.zeros((count, 4), np.float32)


def test_the_least_recently_used_picture_goes_first() -> None:
    cache = PictureCache(3 * tokens(2).nbytes)
    for digest in "abc":
        cache.put(digest, tokens(2))
    assert cache.get("a") is not None
    cache.put("d", tokens(2))
    assert [cache.get(digest) is not None for digest in "abcd"] == [True, False, True, True]
    cache.put("a", tokens(9))
    assert (found := cache.get("a")) is not None
    assert len(found) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5), st.booleans())))
def test_the_budget_holds(steps: list[tuple[str, int, bool]]) -> None:
    budget = 4 * tokens(1).nbytes
    cache = PictureCache(budget)
    for digest, count, put in steps:
        if put:
            cache.put(digest, tokens(count))
        else:
            cache.get(digest)
        kept_now = [found for name in "abcdef" if (found := cache._tokens.get(name)) is not None]
        assert cache.held == sum(array.nbytes for array in kept_now) <= budget
