"""Pictures of a case as the model sees them: the canvas with its crops, overlaps and groups, and the low-res view."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from molmo2_iree.architecture import Processor
from molmo2_iree.preprocess.crops import canvas_patch_numbers, group_windows, low_res_patches
from molmo2_iree.preprocess.layout import canvas_grid
from molmo2_iree.preprocess.tiling import choose_tiling

CANVAS_SIDE, LOW_SIDE = 420, 140
"""Pixels of the longer side as shown."""

COLOURS = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233))
INCOMPLETE = (255, 214, 0, 110)
GRID = (255, 255, 255, 110)
SHARED = (20, 20, 20, 90)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Drawn:
    """A picture with its cut drawn on it. Tiling counts (rows, columns); ``canvas``, ``width`` wide, is a data URI."""

    name: str
    size: tuple[int, int]
    tiling: tuple[int, int]
    canvas_size: tuple[int, int]
    crops: int
    groups: int
    incomplete: int
    canvas: str
    width: int
    low_res: str


def draw(name: str, pixels: np.ndarray, processor: Processor) -> Drawn:
    """Cut a picture, RGB uint8 [H, W, 3], as preprocessing does, and draw where."""
    tiling = choose_tiling(pixels.shape[0], pixels.shape[1], processor)
    rows, columns = canvas_grid(processor, tiling)
    shown = Image.fromarray(pixels)
    high = group_windows(canvas_patch_numbers(tiling, processor), processor)
    low = group_windows(low_res_patches(processor), processor)
    side = processor.patch_size
    canvas = _groups(_shown(shown, (columns, rows), CANVAS_SIDE), high, (rows, columns), processor)
    canvas = _crops(canvas, tiling, processor, canvas.width / (columns * side))
    low_rows, low_columns = (size // side for size in processor.image_size)
    view = _groups(_shown(shown, (low_columns, low_rows), LOW_SIDE), low, (low_rows, low_columns), processor)
    windows = np.concatenate([table.reshape(-1, processor.group_size) for table in (low, high)])
    return Drawn(
        name=name,
        size=(pixels.shape[1], pixels.shape[0]),
        tiling=tiling,
        canvas_size=(columns * side, rows * side),
        crops=1 + tiling[0] * tiling[1],
        groups=len(windows),
        incomplete=int((windows < 0).any(1).sum()),
        canvas=data_uri(canvas),
        width=canvas.width,
        low_res=data_uri(view),
    )


def _shown(picture: Image.Image, grid: tuple[int, int], side: int) -> Image.Image:
    longest = max(grid)
    size = tuple(max(1, round(count * side / longest)) for count in grid)
    return picture.resize((size[0], size[1]), Image.Resampling.BILINEAR)


def window_boxes(
    windows: np.ndarray, grid: tuple[int, int], pooling: tuple[int, int]
) -> list[tuple[tuple[int, int, int, int], bool]]:
    """Each window as ((left, top, right, bottom) in patches of the grid, whether a place in it holds no patch).

    A grid of 3 x 3 patches by 2 x 2 has its empty places at the end: (0, 0, 2, 2), (2, 0, 3, 2), (0, 2, 2, 3),
    (2, 2, 3, 3), the last three incomplete.
    """
    before = [(-count % by) // 2 for count, by in zip(grid, pooling, strict=True)]
    boxes = []
    for row, column in np.ndindex(windows.shape[:2]):
        top, left = row * pooling[0] - before[0], column * pooling[1] - before[1]
        box = (max(left, 0), max(top, 0), min(left + pooling[1], grid[1]), min(top + pooling[0], grid[0]))
        boxes.append((box, bool((windows[row, column] < 0).any())))
    return boxes


def _groups(picture: Image.Image, windows: np.ndarray, grid: tuple[int, int], processor: Processor) -> Image.Image:
    layer = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    pen = ImageDraw.Draw(layer)
    across, down = picture.width / grid[1], picture.height / grid[0]
    for (left, top, right, bottom), incomplete in window_boxes(windows, grid, processor.pooling_size):
        box = (left * across, top * down, right * across - 1, bottom * down - 1)
        pen.rectangle(box, fill=INCOMPLETE if incomplete else None, outline=GRID)
    return Image.alpha_composite(picture.convert("RGBA"), layer)


def crop_boxes(tiling: tuple[int, int], processor: Processor) -> list[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of every crop in the canvas's pixels, row by row; neighbours overlap."""
    height, width = processor.image_size
    margin = sum(processor.overlap_margins) * processor.patch_size
    corners = [
        (column * (width - margin), row * (height - margin)) for row in range(tiling[0]) for column in range(tiling[1])
    ]
    return [(left, top, left + width, top + height) for left, top in corners]


def _crops(picture: Image.Image, tiling: tuple[int, int], processor: Processor, scale: float) -> Image.Image:
    """Outline and number of each crop; what two crops share is darkened."""
    layer = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    pen = ImageDraw.Draw(layer)
    boxes = [tuple(value * scale for value in box) for box in crop_boxes(tiling, processor)]
    shared = np.zeros((picture.height, picture.width), np.int32)
    for left, top, right, bottom in boxes:
        shared[round(top) : round(bottom), round(left) : round(right)] += 1
    layer.paste(SHARED, (0, 0), Image.fromarray(((shared > 1) * 255).astype(np.uint8)))
    for number, (left, top, right, bottom) in enumerate(boxes):
        colour = COLOURS[number % len(COLOURS)]
        inset = 2 + number % 2 * 3
        box = (left + inset, top + inset, right - inset - 1, bottom - inset - 1)
        pen.rectangle(box, outline=(*colour, 255), width=3)
        pen.rectangle((box[0], box[1], box[0] + 18, box[1] + 18), fill=(*colour, 255))
        pen.text((box[0] + 9, box[1] + 9), str(number + 1), fill=(255, 255, 255, 255), anchor="mm")
    return Image.alpha_composite(picture, layer)


def data_uri(picture: Image.Image) -> str:
    """The picture inside the page itself."""
    stream = io.BytesIO()
    picture.convert("RGB").save(stream, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
