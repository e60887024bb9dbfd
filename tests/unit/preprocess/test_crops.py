"""Crops, patches and the table of groups, against loops, literal tables and torch's resize."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.preprocess.samples import RELEASED, SIZES, SMALL, by_torch, photo_of, processors, small_photo

from molmo2_iree.architecture import Processor, image_groups, tilings
from molmo2_iree.preprocess import crops
from molmo2_iree.preprocess.layout import image_ids, patch_grid
from molmo2_iree.preprocess.resize import resize
from molmo2_iree.preprocess.tiling import choose_tiling


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_contract_sizes(size: tuple[int, int]) -> None:
    photo, ((rows, columns), high) = photo_of(*size), SIZES[size]
    image = crops.cut_image(photo, RELEASED.processor)
    assert image.crops == 1 + rows * columns
    assert image.grid == (14, 14, *high)
    assert image.patches.shape == (image.crops, 729, 588)
    assert image.groups.shape == (196 + high[0] * high[1], 4)
    assert (image.patches.dtype, image.groups.dtype) == (np.float32, np.int32)
    squashed = by_torch(photo, 378, 378)
    canvas = by_torch(photo, rows * 266 + 112, columns * 266 + 112)
    starts = [(266 * r, 266 * c) for r in range(rows) for c in range(columns)]
    views = [squashed, *(canvas[y : y + 378, x : x + 378] for y, x in starts)]
    for crop, view in enumerate(views):
        for patch in (0, 26, 27, 364, 728):
            y, x = 14 * (patch // 27), 14 * (patch % 27)
            values = view[y : y + 14, x : x + 14].astype(np.float32) / np.float32(255)
            expected = (values - np.float32(0.5)) / np.float32(0.5)
            np.testing.assert_array_equal(image.patches[crop, patch], expected.ravel())
    assert image.groups.tolist()[0] == [0, 1, 27, 28]


def owned_by_loop(tiling: tuple[int, int], processor: Processor) -> np.ndarray:
    """Walk over every patch of every crop and write it where it stands on the canvas, unless a neighbour owns it."""
    rows, columns = patch_grid(processor)
    before, after = processor.overlap_margins
    step = (rows - before - after, columns - before - after)
    canvas = np.full((tiling[0] * step[0] + before + after, tiling[1] * step[1] + before + after), -5)
    for r in range(tiling[0]):
        for c in range(tiling[1]):
            for y in range(rows):
                for x in range(columns):
                    above, below = y < before and r > 0, y >= rows - after and r < tiling[0] - 1
                    left, right = x < before and c > 0, x >= columns - after and c < tiling[1] - 1
                    if not (above or below or left or right):
                        assert canvas[r * step[0] + y, c * step[1] + x] == -5, "two owners"
                        crop = 1 + r * tiling[1] + c
                        canvas[r * step[0] + y, c * step[1] + x] = crop * rows * columns + y * columns + x
    assert (canvas >= 0).all(), "no owner"
    return canvas


def windows_by_loop(numbers: np.ndarray, pooling: tuple[int, int]) -> list[list[list[int]]]:
    down, across = pooling
    height, width = numbers.shape
    rows, columns = -(-height // down), -(-width // across)
    top, left = (rows * down - height) // 2, (columns * across - width) // 2
    table = []
    for r in range(rows):
        table.append([])
        for c in range(columns):
            places = [(r * down + y - top, c * across + x - left) for y in range(down) for x in range(across)]
            inside = [0 <= y < height and 0 <= x < width for y, x in places]
            table[-1].append([int(numbers[place]) if ok else -1 for place, ok in zip(places, inside, strict=True)])
    return table


@pytest.mark.parametrize("tiling", tilings(8), ids=str)
def test_released_ownership_equals_the_loop(tiling: tuple[int, int]) -> None:
    ours = crops.canvas_patch_numbers(tiling, RELEASED.processor)
    np.testing.assert_array_equal(ours, owned_by_loop(tiling, RELEASED.processor))


@given(processors(), st.data())
@settings(deadline=None, max_examples=60)
def test_any_table_equals_the_loops(processor: Processor, data: st.DataObject) -> None:
    tiling = data.draw(st.sampled_from(tilings(processor.max_crops)))
    numbers = crops.canvas_patch_numbers(tiling, processor)
    np.testing.assert_array_equal(numbers, owned_by_loop(tiling, processor))
    assert crops.group_windows(numbers, processor).tolist() == windows_by_loop(numbers, processor.pooling_size)


@given(processors(), st.integers(1, 600), st.integers(1, 600))
@settings(deadline=None, max_examples=150)
def test_placeholders_equal_projected_rows(processor: Processor, height: int, width: int) -> None:
    tiling = choose_tiling(height, width, processor)
    table, grid = crops.group_table(tiling, processor)
    projected = int((table >= 0).any(axis=1).sum())
    ids = image_ids(grid, processor, SMALL.tokens)
    assert int((ids == SMALL.tokens.image_patch).sum()) == projected == len(table) == image_groups(processor, *tiling)
    columns = grid[2] * processor.column_tokens + grid[0] * processor.single_crop_column_tokens
    assert len(ids) == projected + columns + 4
    shown = np.sort(table[table >= 0])
    assert len(np.unique(shown)) == len(shown), "a patch in two groups"


def test_canvas_table_of_the_docstring() -> None:
    processor = SMALL.processor.model_copy(update={"image_size": (42, 42)})
    table = crops.canvas_patch_numbers((1, 2), processor)
    assert table.tolist() == [[9, 10, 19, 20], [12, 13, 22, 23], [15, 16, 25, 26]]
    assert table.dtype == np.int32


def test_window_table_of_the_docstring() -> None:
    windows = crops.group_windows(np.arange(9, dtype=np.int32).reshape(3, 3), SMALL.processor)
    assert windows.tolist() == [[[0, 1, 3, 4], [2, -1, 5, -1]], [[6, 7, -1, -1], [8, -1, -1, -1]]]


def test_low_res_table_of_the_docstring() -> None:
    processor = SMALL.processor.model_copy(update={"image_size": (28, 28)})
    assert crops.low_res_patches(processor).tolist() == [[0, 1], [2, 3]]


def test_patch_order_is_row_column_colour() -> None:
    crop = np.arange(2 * 4 * 3).reshape(2, 4, 3)
    assert crops.cut_patches(crop, 2).tolist() == [
        [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17],
        [6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23],
    ]


def test_normalise_rounds_each_of_three_steps() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(1, 256, 1).repeat(3, axis=2)
    ours = crops.normalise(grey, RELEASED.processor)
    for value in range(256):
        one = np.float32(value) / np.float32(255)
        assert ours[0, value, 1] == (one - np.float32(0.5)) / np.float32(0.5)
    assert (ours.min(), ours.max()) == (-1, 1)
    fused = (np.arange(256, dtype=np.float32) - np.float32(127.5)) / np.float32(127.5)
    assert int((ours[0, :, 0] != fused).sum()) == 128


def test_normalise_uses_each_channels_own_figures_and_does_not_divide_floats() -> None:
    processor = SMALL.processor.model_copy(update={"mean": (0.5, 0.25, 0.0), "std": (0.5, 0.25, 2.0)})
    values = crops.normalise(np.array([[[1.0, 0.5, 0.5]]], np.float32), processor)
    assert values.tolist() == [[[1.0, 1.0, 0.25]]]


def test_crops_overlap_by_the_margins_and_come_straight_from_the_picture() -> None:
    photo, processor = photo_of(480, 640), RELEASED.processor
    image = crops.cut_image(photo, processor)
    canvas = crops.normalise(resize(photo, 644, 644), processor)
    for r in range(2):
        for c in range(2):
            crop = canvas[266 * r : 266 * r + 378, 266 * c : 266 * c + 378]
            np.testing.assert_array_equal(image.patches[1 + 2 * r + c], crops.cut_patches(crop, 14))
    low = crops.normalise(resize(photo, 378, 378), processor)
    np.testing.assert_array_equal(image.patches[0], crops.cut_patches(low, 14))


def test_known_answer_of_a_2x3_tiling() -> None:
    table, grid = crops.group_table((2, 3), RELEASED.processor)
    ids = image_ids(grid, RELEASED.processor, RELEASED.tokens)
    assert (grid, table.shape, len(ids)) == ((14, 14, 23, 33), (955, 4), 982)


def test_known_answer_of_the_largest_tiling() -> None:
    table, grid = crops.group_table((8, 1), RELEASED.processor)
    assert (len(image_ids(grid, RELEASED.processor, RELEASED.tokens)), len(table)) == (1400, 1316)


@pytest.mark.parametrize("size", [(1, 1), (98, 98), (150, 260), (13, 900), (999, 14)], ids=str)
def test_small_processor_and_float_pictures(size: tuple[int, int]) -> None:
    photo = small_photo(*size)
    whole = crops.cut_image(photo, SMALL.processor)
    assert whole.patches.shape == (whole.crops, 49, 588)
    floats = crops.cut_image(photo.astype(np.float32) / np.float32(255), SMALL.processor)
    np.testing.assert_array_equal(floats.groups, whole.groups)
    assert float(np.abs(floats.patches - whole.patches).max()) <= 1.01 / 255  # only the rounding to whole greys differs
