"""Where crops and groups are drawn."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from molmo2_iree.build.plan import Plan
from molmo2_iree.parity.report_pictures import CANVAS_SIDE, LOW_SIDE, crop_boxes, draw, window_boxes
from molmo2_iree.preprocess.crops import canvas_patch_numbers, group_windows
from molmo2_iree.preprocess.layout import canvas_grid


def test_windows_of_a_grid_that_does_not_divide(plan: Plan) -> None:
    processor = plan.lock.architecture.processor
    assert processor.pooling_size == (2, 2)
    windows = group_windows(np.arange(9, dtype=np.int32).reshape(3, 3), processor)
    assert window_boxes(windows, (3, 3), (2, 2)) == [
        ((0, 0, 2, 2), False),
        ((2, 0, 3, 2), True),
        ((0, 2, 2, 3), True),
        ((2, 2, 3, 3), True),
    ]


def test_a_window_s_box_holds_its_patches(plan: Plan) -> None:
    processor = plan.lock.architecture.processor
    numbers = canvas_patch_numbers((2, 3), processor)
    windows = group_windows(numbers, processor)
    for ((left, top, right, bottom), incomplete), window in zip(
        window_boxes(windows, numbers.shape, processor.pooling_size),
        windows.reshape(-1, processor.group_size),
        strict=True,
    ):
        assert sorted(numbers[top:bottom, left:right].reshape(-1)) == sorted(window[window >= 0])
        assert incomplete == (window < 0).any()


def test_crops_overlap_by_the_margins_and_fill_the_canvas(plan: Plan) -> None:
    processor = plan.lock.architecture.processor
    boxes = crop_boxes((1, 2), processor)
    assert boxes == [(0, 0, 98, 98), (70, 0, 168, 98)]
    rows, columns = canvas_grid(processor, (1, 2))
    assert boxes[-1][2:] == (columns * processor.patch_size, rows * processor.patch_size)


@pytest.mark.parametrize(("height", "width"), [(98, 168), (60, 2000), (1, 1)])
def test_a_picture_is_drawn_inside_the_page(plan: Plan, height: int, width: int) -> None:
    drawn = draw("a.png", np.zeros((height, width, 3), np.uint8), plan.lock.architecture.processor)
    assert drawn.size == (width, height)
    assert drawn.crops == 1 + drawn.tiling[0] * drawn.tiling[1]
    for uri, side in ((drawn.canvas, CANVAS_SIDE), (drawn.low_res, LOW_SIDE)):
        head, _, body = uri.partition(",")
        assert head == "data:image/jpeg;base64"
        assert max(Image.open(io.BytesIO(base64.b64decode(body))).size) == side
