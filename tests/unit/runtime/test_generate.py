"""Greedy answers: which id is taken, when an answer ends, and that it comes from the pictures."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from runtime_requests import CAT, noise, of_length, pictured, text

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime import generate as generating
from molmo2_iree.runtime.generate import Timings, check_room, generate, greedy
from molmo2_iree.runtime.model import Model


def test_the_first_maximum_wins() -> None:
    assert greedy(np.array([0, 3, 1, 3, 3], np.float32)) == 1
    assert greedy(np.array([-5], np.float32)) == 0
    assert greedy(np.full(7, -1e30, np.float32)) == 0


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(number: float) -> None:
    logits = np.zeros(9, np.float32)
    logits[[4, 6]] = number
    with pytest.raises(RequestError, match=f"logits, id 4: got {number}, expected finite values"):
        greedy(logits)


def by_hand(model: Model, payload: Any, count: int) -> list[int]:
    """Greedy ids from whole logits, one decode at a time, stop ids not looked at."""
    cache = model.new_cache()
    ids = [int(np.argmax(model.prefill(payload, cache, 3)))]
    while len(ids) < count:
        logits = model.decode({3: ids[-1]}, {3: len(payload.ids) + len(ids) - 1}, cache)[3]
        ids.append(int(np.argmax(logits)))
    return ids


def test_an_answer_is_the_arg_max_of_each_step(model: Model) -> None:
    payload = pictured(model, [CAT])
    wanted = by_hand(model, payload, 20)
    stops = [k for k, token in enumerate(wanted) if token in model.architecture.tokens.stop]
    assert list(generate(model, payload, 20)) == wanted[: stops[0] if stops else 20]


def test_the_same_answer_twice(model: Model) -> None:
    payload = pictured(model, [CAT, noise(1)])
    assert list(generate(model, payload, 12)) == list(generate(model, payload, 12))


def scripted(monkeypatch: pytest.MonkeyPatch, model: Model, tokens: list[int]) -> None:
    """Make the model say these ids, one a step."""
    script: Iterator[int] = iter(tokens)

    def logits() -> np.ndarray:
        row = np.zeros(model.architecture.text.vocabulary, np.float32)
        row[next(script)] = 1
        return row

    monkeypatch.setattr(generating, "start", lambda *_: logits())
    monkeypatch.setattr(Model, "decode", lambda *_: {0: logits()})


def test_a_stop_id_ends_the_answer_and_is_not_part_of_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    (stop,) = model.architecture.tokens.stop
    scripted(monkeypatch, model, [1, 2, stop, 3])
    assert list(generate(model, text(model), 10)) == [1, 2]
    scripted(monkeypatch, model, [stop])
    assert list(generate(model, text(model), 10)) == []


def test_no_step_is_taken_after_the_last_token(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, model, [1, 2, 3])
    assert list(generate(model, text(model), 3)) == [1, 2, 3]
    scripted(monkeypatch, model, [7])
    assert list(generate(model, text(model), 1)) == [7]


def test_logits_that_turn_bad_end_the_answer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = np.full(model.architecture.text.vocabulary, np.nan, np.float32)
    monkeypatch.setattr(Model, "decode", lambda *_: {0: bad})
    answer = generate(model, text(model), 5)
    next(answer)
    with pytest.raises(RequestError, match="logits, id 0: got nan"):
        next(answer)


def test_a_full_context(model: Model) -> None:
    payload, context = of_length(model, 768), model.bundle.cache.context
    room = context - 768
    check_room(model, payload, room)
    for wrong in (room + 1, 0, -1, 2**70, 1.5, True, None, "3"):
        with pytest.raises(RequestError, match=f"prompt of 768 in a context of {context}: got .*expected 1 to {room}"):
            list(generate(model, payload, wrong))  # pyright: ignore[reportArgumentType]


def test_an_answer_may_fill_the_context(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    payload, real = of_length(model, 768), Model.decode
    logits = np.zeros(model.architecture.text.vocabulary, np.float32)
    positions: list[int] = []

    def decode(self: Model, ids: dict[int, int], at: dict[int, int], cache: Any) -> dict[int, np.ndarray]:
        positions.extend(at.values())
        if at[0] > 1020:
            real(self, ids, at, cache)
        return {0: logits}

    monkeypatch.setattr(Model, "decode", decode)
    assert len(list(generate(model, payload, 256))) == 256
    assert (positions[0], positions[-1]) == (768, 1022)


def test_a_prompt_that_fills_the_context_leaves_no_room(model: Model) -> None:
    cache = model.bundle.cache.model_copy(update={"context": 768})
    small = dataclasses.replace(model, bundle=dataclasses.replace(model.bundle, cache=cache))
    with pytest.raises(RequestError, match="prompt: got 768 tokens, expected at most 767: the context holds 768"):
        check_room(small, of_length(model, 768), 1)


def test_a_prompt_that_no_bucket_holds(model: Model) -> None:
    payload = pictured(model, [noise(k, 90, 700) for k in range(9)])
    length = len(payload.ids)
    assert length > 768
    words = f"prompt: got {length} tokens, {int(payload.types.sum())} of them for 9 pictures, expected at most 768"
    with pytest.raises(RequestError, match=words):
        list(generate(model, payload, 1))


def test_what_is_no_payload(model: Model) -> None:
    for wrong in (None, 3, "text", {}, [1, 2]):
        with pytest.raises(RequestError, match="expected Payload"):
            list(generate(model, wrong, 1))  # pyright: ignore[reportArgumentType]


def first(model: Model, payload: Any) -> np.ndarray:
    return model.prefill(payload, model.new_cache())


def test_pictures_change_the_answer(model: Model) -> None:
    one, other = noise(1), noise(2)
    logits = first(model, pictured(model, [one]))
    np.testing.assert_array_equal(first(model, pictured(model, [one])), logits)
    for pictures in ([other], [one[:, ::-1].copy()], [one, other]):
        assert np.abs(first(model, pictured(model, pictures)) - logits).max() > 1e-3


def test_swapping_two_pictures_changes_the_answer(model: Model) -> None:
    one, other = noise(1), noise(2)
    swapped = first(model, pictured(model, [one, other])) - first(model, pictured(model, [other, one]))
    assert np.abs(swapped).max() > 1e-3


def test_the_question_changes_the_answer(model: Model) -> None:
    asked = [first(model, pictured(model, [noise(1)], question)) for question in ("What is this?", "What is that?")]
    assert np.abs(asked[0] - asked[1]).max() > 1e-3


def test_timings_add_up(model: Model) -> None:
    spent = Timings()
    began = time.perf_counter()
    tokens = list(generate(model, pictured(model, [noise(1), noise(2)]), 5, spent))
    whole = time.perf_counter() - began
    assert list(spent.steps) == ["vision", "connector", "merge", "prefill"]
    assert len(spent.decode) in (len(tokens), len(tokens) - 1)
    assert 0 < sum(spent.steps.values()) + sum(spent.decode) <= whole
