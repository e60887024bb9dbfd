"""Cut one picture into normalised patches and the table of groups that become image tokens (contract 3.2 to 3.5)."""

import numpy as np

from molmo2_iree.architecture import Processor
from molmo2_iree.preprocess.layout import canvas_grid, patch_grid
from molmo2_iree.preprocess.payload import Image
from molmo2_iree.preprocess.resize import resize
from molmo2_iree.preprocess.tiling import choose_tiling


def cut_image(pixels: np.ndarray, processor: Processor) -> Image:
    """The crops of a picture given as [H, W, 3], uint8 or float32 in 0..1: crop 0 is the whole picture squashed."""
    tiling = choose_tiling(pixels.shape[0], pixels.shape[1], processor)
    canvas_rows, canvas_columns = (side * processor.patch_size for side in canvas_grid(processor, tiling))
    low_res = normalise(resize(pixels, *processor.image_size), processor)
    canvas = normalise(resize(pixels, canvas_rows, canvas_columns), processor)
    crops = [low_res, *cut_canvas(canvas, tiling, processor)]
    groups, grid = group_table(tiling, processor)
    return Image(
        patches=np.stack([cut_patches(crop, processor.patch_size) for crop in crops]),
        groups=groups,
        grid=grid,
        crops=len(crops),
    )


def group_table(tiling: tuple[int, int], processor: Processor) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """The table int32 [G, P] of an image cut by ``tiling``, low-res rows first, and its grid counted in groups."""
    low = group_windows(low_res_patches(processor), processor)
    high = group_windows(canvas_patch_numbers(tiling, processor), processor)
    table = np.concatenate([low.reshape(-1, processor.group_size), high.reshape(-1, processor.group_size)])
    return table, (low.shape[0], low.shape[1], high.shape[0], high.shape[1])


def normalise(pixels: np.ndarray, processor: Processor) -> np.ndarray:
    """float32 ((x / 255) - mean) / std for each RGB channel, each step rounded; a float x is not divided by 255."""
    mean, std = np.array(processor.mean, np.float32), np.array(processor.std, np.float32)
    values = pixels.astype(np.float32)
    if pixels.dtype == np.uint8:
        values /= np.float32(255)
    values -= mean
    values /= std
    return values


def cut_canvas(canvas: np.ndarray, tiling: tuple[int, int], processor: Processor) -> list[np.ndarray]:
    """Crops of a canvas, row by row. They overlap by the margins: each starts one window after the one before."""
    margin = sum(processor.overlap_margins) * processor.patch_size
    height, width = processor.image_size
    tops = [row * (height - margin) for row in range(tiling[0])]
    lefts = [column * (width - margin) for column in range(tiling[1])]
    return [canvas[top : top + height, left : left + width] for top in tops for left in lefts]


def cut_patches(crop: np.ndarray, size: int) -> np.ndarray:
    """[H, W, 3] to [N, E]: patches row by row, and in a patch the values by row, column, RGB.

    A crop of 2 x 4 pixels at size 2 gives pixels (0,0) (0,1) (1,0) (1,1), then (0,2) (0,3) (1,2) (1,3).
    """
    rows, columns = crop.shape[0] // size, crop.shape[1] // size
    split = crop.reshape(rows, size, columns, size, 3)
    return split.transpose(0, 2, 1, 3, 4).reshape(rows * columns, size * size * 3)


def low_res_patches(processor: Processor) -> np.ndarray:
    """Patch numbers of crop 0 as a grid: int32 [rows, columns], [[0, 1], [2, 3]] for a crop of 2 x 2 patches."""
    rows, columns = patch_grid(processor)
    return np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)


def canvas_patch_numbers(tiling: tuple[int, int], processor: Processor) -> np.ndarray:
    """The patch that shows each place of the canvas: int32 [rows, columns] of N * crop + patch, crop 0 the low-res one.

    Where two crops overlap, the margins' patches belong to the neighbour; at the canvas's edge they stay. With crops
    of 3 x 3 patches, margins (1, 1) and a tiling of (1, 2), crop 1 is patches 9..17, crop 2 is 18..26, and the canvas
    is [[9, 10, 19, 20], [12, 13, 22, 23], [15, 16, 25, 26]].
    """
    rows, columns = patch_grid(processor)
    (row_crop, row), (column_crop, column) = (
        _owners(tiling[axis], side, processor.overlap_margins) for axis, side in enumerate((rows, columns))
    )
    crop = 1 + row_crop[:, None] * tiling[1] + column_crop
    return (crop * rows * columns + row[:, None] * columns + column).astype(np.int32)


def _owners(tiles: int, side: int, margins: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Along one axis: the crop that owns each canvas patch, and the patch's place in that crop."""
    window = side - sum(margins)
    place = np.arange(tiles * window + sum(margins))
    owner = np.clip((place - margins[0]) // window, 0, tiles - 1)
    return owner, place - owner * window


def group_windows(numbers: np.ndarray, processor: Processor) -> np.ndarray:
    """Cut a grid of patch numbers into windows of the pooling size: int32 [rows, columns, P], -1 for no patch.

    What is missing to a whole number of windows is padded half before, half after, the odd one after. A 3 x 3 grid by
    2 x 2: [[0,1,3,4], [2,-1,5,-1]], [[6,7,-1,-1], [8,-1,-1,-1]].
    """
    down, across = processor.pooling_size
    missing = (-numbers.shape[0] % down, -numbers.shape[1] % across)
    padded = np.pad(numbers, [(m // 2, m - m // 2) for m in missing], constant_values=-1)
    rows, columns = padded.shape[0] // down, padded.shape[1] // across
    return padded.reshape(rows, down, columns, across).transpose(0, 2, 1, 3).reshape(rows, columns, down * across)
