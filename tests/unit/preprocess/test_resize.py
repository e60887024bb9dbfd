"""Bit-exactness of the resize against torch's own kernel and against the formula written out pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.preprocess.samples import SIZES, by_torch, load_photo, photo_of

from molmo2_iree.preprocess.resize import axis_taps, resize

TARGETS = [(378, 378), (644, 644), (378, 644), (644, 1176), (1708, 378), (2240, 378), (98, 98), (1, 700), (700, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_equals_torch_bit_for_bit(size: tuple[int, int], target: tuple[int, int]) -> None:
    photo = photo_of(*size)
    ours = resize(photo, *target)
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, by_torch(photo, *target))


@pytest.mark.parametrize("size", [(333, 517), (60, 2000), (112, 300), (1, 1)], ids=str)
def test_float_pictures_equal_torch_and_stay_unrounded(size: tuple[int, int]) -> None:
    photo = photo_of(*size).astype(np.float32) / np.float32(255)
    ours = resize(photo, 378, 378)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, by_torch(photo, 378, 378))


@given(st.integers(1, 130), st.integers(1, 130), st.integers(1, 200), st.integers(0, 200))
@settings(deadline=None, max_examples=150)
def test_any_size_equals_torch(height: int, width: int, to_height: int, more: int) -> None:
    to_width = max(129 - to_height, 1) + more  # torch has another kernel for output sides that add up to 128 or less
    photo = load_photo("coffee")[100 : 100 + height, 200 : 200 + width]
    np.testing.assert_array_equal(resize(photo, to_height, to_width), by_torch(photo, to_height, to_width))


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return np.float32(float(a) * float(b) + float(c))


def by_formula(n_in: int, n_out: int, o: int) -> tuple[int, int, np.float32, np.float32]:
    if n_in == n_out:
        return o, o, np.float32(1), np.float32(0)
    scale = np.float32(n_in) / np.float32(n_out)
    src = max(fma(scale, np.float32(o + 0.5), np.float32(-0.5)), np.float32(0))
    low = min(int(src), n_in - 1)
    w_high = np.float32(min(max(src - np.float32(low), np.float32(0)), np.float32(1)))
    return low, low + (1 if low < n_in - 1 else 0), np.float32(1) - w_high, w_high


def test_equals_the_formula_written_out() -> None:
    photo, (height, width) = load_photo("rocket")[60:103, 150:221], (29, 96)
    ours = resize(photo, height, width)
    for y in range(height):
        y_low, y_high, wy_low, wy_high = by_formula(photo.shape[0], height, y)
        for x in range(width):
            x_low, x_high, wx_low, wx_high = by_formula(photo.shape[1], width, x)
            for c in range(3):
                p = photo[..., c].astype(np.float32)
                top = fma(p[y_low, x_low], wx_low, p[y_low, x_high] * wx_high)
                bottom = fma(p[y_high, x_low], wx_low, p[y_high, x_high] * wx_high)
                assert ours[y, x, c] == round(float(fma(top, wy_low, bottom * wy_high)))


@given(st.integers(1, 5000), st.integers(1, 2300))
@settings(deadline=None, max_examples=60)
def test_axis_taps_equal_the_formula(inputs: int, outputs: int) -> None:
    low, high, w_low, w_high = axis_taps(inputs, outputs)
    for o in (*range(0, outputs, 17), outputs - 1):
        assert by_formula(inputs, outputs, o) == (low[o], high[o], w_low[o], w_high[o])


def test_axis_taps_of_the_docstring() -> None:
    low, high, w_low, w_high = axis_taps(4, 2)
    assert (low.tolist(), high.tolist()) == ([0, 2], [1, 3])
    assert (w_low.tolist(), w_high.tolist()) == ([0.5, 0.5], [0.5, 0.5])
    low, high, w_low, w_high = axis_taps(2, 4)
    assert (low.tolist(), high.tolist()) == ([0, 0, 0, 1], [1, 1, 1, 1])
    assert w_high.tolist() == [0, 0.25, 0.75, 0.25]
    assert w_low.tolist() == [1, 0.75, 0.25, 0.75]


def test_ties_round_to_even() -> None:
    ramp = np.array([[[0] * 3, [1] * 3, [2] * 3, [3] * 3]], np.uint8)
    assert resize(ramp, 1, 2)[0, :, 0].tolist() == [0, 2]


def test_the_picture_is_left_alone() -> None:
    photo = photo_of(200, 150).copy()
    before = photo.copy()
    resize(photo, 378, 378)
    np.testing.assert_array_equal(photo, before)
    np.testing.assert_array_equal(resize(photo, 200, 150), before)
