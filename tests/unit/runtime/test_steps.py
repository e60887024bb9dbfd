"""The engine's steps one by one: crops in parts give the whole, and a cleared slot is as new."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from runtime_requests import CAT, noise, of_length, pictured, rows, text

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.device import to_host
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.prefix import read_prompt
from molmo2_iree.runtime.reading import plan_reading
from molmo2_iree.runtime.steps import Steps


def read(steps: Steps, payload: Payload, slot: int, reused: int = 0) -> np.ndarray:
    """Logits of the last id of a payload, read unit by unit."""
    prompt = read_prompt(payload)
    reading = steps.begin(payload, prompt, slot)
    logits = [
        steps.read(unit, reading) for unit in plan_reading(prompt, reused, reading.tokens, steps.model.bundle.buckets)
    ]
    assert logits[-1] is not None
    return logits[-1]


@pytest.mark.parametrize(
    "pictures",
    [[CAT], [noise(1, 40, 40)], [noise(2, 150, 150)], [noise(3, 90, 700), CAT], [noise(4), noise(4), noise(5)]],
    ids=["nine crops", "two", "five", "two pictures", "the same twice"],
)
def test_in_parts_as_whole(model: Model, pictures: list[Any]) -> None:
    payload, steps = pictured(model, pictures), Steps(model, 10**9)
    np.testing.assert_array_equal(read(steps, payload, 2), model.prefill(payload, model.new_cache()))
    np.testing.assert_array_equal(read(steps, payload, 0), read(Steps(model, 0), payload, 3))


@pytest.mark.parametrize("length", [17, 128, 129, 192, 193, 500])
def test_long_text_in_pieces_as_whole(model: Model, length: int) -> None:
    payload = of_length(model, length)
    np.testing.assert_allclose(
        read(Steps(model, 0), payload, 1), model.prefill(payload, model.new_cache()), rtol=1e-5, atol=1e-5
    )


def test_going_on_from_rows_that_are_there(model: Model) -> None:
    payload, steps = pictured(model, [CAT], "What is there, and what is not? " * 4), Steps(model, 10**9)
    whole = read(steps, payload, 1)
    for reused in (read_prompt(payload).image_end, len(payload.ids) - 20, len(payload.ids) - 1):
        np.testing.assert_allclose(read(steps, payload, 1, reused), whole, rtol=1e-5, atol=1e-5)


def test_a_cleared_slot_is_zero_and_the_others_untouched(model: Model) -> None:
    steps = Steps(model, 0)
    for slot in range(4):
        read(steps, text(model, f"{slot}?"), slot)
    before = rows(steps._cache)
    steps.clear([1, 3])
    for old, new in zip(before, rows(steps._cache), strict=True):
        assert not new[[1, 3]].any()
        np.testing.assert_array_equal(new[[0, 2]], old[[0, 2]])
    np.testing.assert_array_equal(read(steps, text(model), 1), model.prefill(text(model), model.new_cache()))


def test_arrays_on_the_device_keep_their_values(model: Model) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    np.testing.assert_array_equal(to_host(model.device.put(values)), values)
    short = values.astype(ml_dtypes.bfloat16)
    back = to_host(model.device.put(short))
    assert back.dtype == short.dtype
    np.testing.assert_array_equal(back, short)
