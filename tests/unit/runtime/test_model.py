"""Stages called one by one and together: slots that do not touch each other, and what each step refuses."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from runtime_requests import CAT, close, noise, pictured, rows, text

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.model import Cache, Model

APPENDED = [65, 66, 67, 300, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def filled(model: Model, payload: Payload, slot: int = 0) -> Cache:
    cache = model.new_cache()
    model.prefill(payload, cache, slot)
    return cache


# --- slots ---------------------------------------------------------------------------------------------------------


def test_a_new_cache_is_zero(model: Model) -> None:
    arrays, layout = rows(model.new_cache()), model.bundle.cache
    assert len(arrays) == 2 * model.architecture.text.layers
    assert all(array.shape[0] == layout.slots and not array.any() for array in arrays)


def test_prefill_fills_one_slot(model: Model) -> None:
    payload = pictured(model, [CAT])
    length = len(payload.ids)
    for keys, values in zip(*[iter(rows(filled(model, payload, 2)))] * 2, strict=True):
        for slot in (0, 1, 3):
            assert not keys[slot].any()
            assert not values[slot].any()
        assert keys[2, :, :, :length].all(axis=(0, 1)).all()
        assert not keys[2, :, :, length:].any()
        assert not values[2, :, length:].any()


def test_the_slot_changes_nothing_in_the_answer(model: Model) -> None:
    payload = pictured(model, [CAT])
    first, third = model.new_cache(), model.new_cache()
    np.testing.assert_array_equal(model.prefill(payload, first, 0), model.prefill(payload, third, 3))
    for a, b in zip(rows(first), rows(third), strict=True):
        np.testing.assert_array_equal(a[0], b[3])


def test_slots_advance_together_as_each_alone(model: Model) -> None:
    payloads = {0: text(model), 1: text(model, "Why? " * 60), 3: pictured(model, [CAT, noise(1)])}
    together = model.new_cache()
    for slot, payload in payloads.items():
        model.prefill(payload, together, slot)
    idle = [array[2] for array in rows(together)]
    ids = {0: 5, 1: 77, 3: 201}
    advanced: dict[int, np.ndarray] = {}
    for step in range(3):
        positions = {slot: len(payload.ids) + step for slot, payload in payloads.items()}
        advanced = model.decode(ids, positions, together)
    assert advanced.keys() == payloads.keys()
    for slot, payload in payloads.items():
        for place in (slot, 0):
            alone = filled(model, payload, place)
            steps = [model.decode({place: ids[slot]}, {place: len(payload.ids) + k}, alone) for k in range(3)]
            close(advanced[slot], steps[-1][place])
            for a, b in zip(rows(together), rows(alone), strict=True):
                close(a[slot], b[place])
    for a, b in zip(rows(together), idle, strict=True):
        np.testing.assert_array_equal(a[2], b)


def test_inactive_slots_keep_every_byte(model: Model) -> None:
    cache = filled(model, text(model), 1)
    model.prefill(pictured(model, [CAT]), cache, 3)
    before = rows(cache)
    model.decode({1: 9}, {1: len(text(model).ids)}, cache)
    model.extend([7, 8, 9], len(text(model).ids) + 1, cache, 1)
    for a, b in zip(rows(cache), before, strict=True):
        for slot in (0, 2, 3):
            np.testing.assert_array_equal(a[slot], b[slot])
        assert not np.array_equal(a[1], b[1])


def test_a_slot_is_used_again_without_a_trace(model: Model) -> None:
    cache = filled(model, pictured(model, [CAT, noise(2)]), 0)
    short = text(model)
    np.testing.assert_array_equal(model.prefill(short, cache, 0), model.prefill(short, model.new_cache(), 0))
    fresh = filled(model, short, 0)
    position = len(short.ids)
    close(model.decode({0: 5}, {0: position}, cache)[0], model.decode({0: 5}, {0: position}, fresh)[0])


# --- extend and decode ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 16, 17, 20])
def test_extend_is_decode_step_by_step(model: Model, count: int) -> None:
    payload = pictured(model, [CAT])
    start = len(payload.ids)
    whole, stepped = filled(model, payload, 1), filled(model, payload, 1)
    logits = model.extend(APPENDED[:count], start, whole, 1)
    steps = [model.decode({1: token}, {1: start + k}, stepped) for k, token in enumerate(APPENDED[:count])]
    close(logits, steps[-1][1])
    for a, b in zip(rows(whole), rows(stepped), strict=True):
        close(a, b)


def test_a_text_prompt_extends_from_nothing(model: Model) -> None:
    payload = text(model)
    cache = model.new_cache()
    pieces = [model.extend(payload.ids[at : at + 5], at, cache) for at in range(0, len(payload.ids), 5)]
    close(pieces[-1], model.prefill(payload, model.new_cache()))


def test_the_last_rows_of_the_context(model: Model) -> None:
    context = model.bundle.cache.context
    cache = model.new_cache()
    model.extend([1] * 3, context - 3, cache, 0)
    model.decode({0: 1}, {0: context - 1}, cache)
    with pytest.raises(RequestError, match=f"positions.*got {context}, expected 0 to {context - 1}"):
        model.decode({0: 1}, {0: context}, cache)
    with pytest.raises(RequestError, match=f"rows of context: got {context + 1}, expected at most {context}"):
        model.extend([1] * 3, context - 2, cache)


@pytest.mark.parametrize(
    ("ids", "positions", "words"),
    [
        ({}, {}, "expected the same slots, at least one"),
        ({0: 1}, {1: 1}, r"got slots \[0\] and \[1\]"),
        ({4: 1}, {4: 1}, r"slots\[0\]: got 4, expected 0 to 3"),
        ({-1: 1}, {-1: 1}, r"slots\[0\]: got -1"),
        ({0: 640}, {0: 1}, r"ids\[0\]: got 640, expected 0 to 639"),
        ({0: 2**40}, {0: 1}, r"ids\[0\]: got 1099511627776"),
        ({0: 1.0}, {0: 1}, r"ids\[0\]: got 1.0"),
        ({0: 1}, {0: None}, r"positions\[0\]: got NoneType"),
        ({"a": 1}, {"a": 1}, r"slots\[0\]: got str"),
        ([1], [1], "got list, expected Mapping"),
    ],
)
def test_decode_refuses(model: Model, ids: Any, positions: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        model.decode(ids, positions, model.new_cache())


@pytest.mark.parametrize(
    ("ids", "start", "words"),
    [
        ([], 0, "length: got 0, expected 1 to 16"),
        ([1] * 65, 0, "appended tokens: got 65, expected at most 64"),
        ([1.5], 0, r"ids\[0\]: got 1.5"),
        ([True], 0, r"ids\[0\]: got True"),
        ([2**70], 0, r"ids\[0\]: got 1180591620717411303424"),
        ("12", 0, "ids: got str, expected integers in a list"),
        (np.zeros((2, 2), np.int32), 0, "ids: got ndarray"),
        (np.zeros(2), 0, r"ids\[0\]: got 0.0"),
        ([1], -1, "start: got -1"),
        ([1], "0", "start: got str"),
    ],
)
def test_extend_refuses(model: Model, ids: Any, start: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        model.extend(ids, start, model.new_cache())


# --- stages by hand ------------------------------------------------------------------------------------------------


def test_stages_by_hand_are_the_line(model: Model) -> None:
    payload = pictured(model, [CAT, noise(3)])
    tokens = np.concatenate([model.connector(image, model.vision(image)) for image in payload])
    assert len(tokens) == int((payload.ids == model.architecture.tokens.image_patch).sum())
    by_hand = model.prefill_embeddings(payload, model.merge(payload, tokens), model.new_cache())
    np.testing.assert_array_equal(by_hand, model.prefill(payload, model.new_cache()))
    np.testing.assert_array_equal(tokens, model.image_tokens(payload))


def test_stages_refuse_what_does_not_belong_together(model: Model) -> None:
    payload, other = pictured(model, [CAT]), pictured(model, [noise(3)])
    image, features = payload.image(0), model.vision(other.image(0))
    tokens = model.image_tokens(payload)
    with pytest.raises(RequestError, match=f"features.*expected what vision gave for these {image.crops} crops"):
        model.connector(dataclasses.replace(image, crops=9), features)
    with pytest.raises(RequestError, match=r"image\.crops: got 2, expected"):
        model.vision(dataclasses.replace(image, crops=2))
    with pytest.raises(RequestError, match=r"image\.patches: got float64"):
        model.vision(dataclasses.replace(image, patches=image.patches.astype(np.float64)))
    with pytest.raises(RequestError, match=r"image\.groups: got int64"):
        model.connector(dataclasses.replace(image, groups=image.groups.astype(np.int64)), features)
    beyond = np.full_like(image.groups, image.crops * 49)
    with pytest.raises(RequestError, match=rf"image\.groups\[0, 0\]: got {image.crops * 49}, expected -1 to"):
        model.connector(dataclasses.replace(image, groups=beyond), features)
    with pytest.raises(
        RequestError, match=rf"count \(= image_patch ids\): got {len(tokens) - 1}, expected {len(tokens)}"
    ):
        model.merge(payload, tokens[1:])
    with pytest.raises(RequestError, match=rf"count \(= image_patch ids\): got 0, expected {len(tokens)}"):
        model.merge(payload, tokens[:0])
    with pytest.raises(RequestError, match="rows of the embeddings: got 3"):
        model.prefill_embeddings(payload, np.zeros((3, 80), np.float32), model.new_cache())


def test_a_wrong_payload_is_refused_before_vision(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pictured(model, [CAT])
    monkeypatch.setattr(Model, "vision", None)
    spoilt: dict[str, Any] = {
        "ids": payload.ids.astype(np.int64),
        "types": payload.types[:-1],
        "patches": payload.patches[:-1],
        "groups": payload.groups + np.int32(49 * 9),
        "grids": payload.grids + np.int32(1),
        "crops": payload.crops - np.int32(1),
    }
    for name, value in spoilt.items():
        for call in (model.prefill, lambda given, _: model.image_tokens(given)):
            with pytest.raises(RequestError, match=f"payload.{name}|payload.patches|payload.crops"):
                call(dataclasses.replace(payload, **{name: value}), model.new_cache())
