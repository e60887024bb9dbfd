"""Sizes of a picture's grids, the ids that stand for it in the prompt, and their types (contract 3.4, 3.6 and 4)."""

import numpy as np

from molmo2_iree.architecture import Processor, Tokens, canvas_patches


def patch_grid(processor: Processor) -> tuple[int, int]:
    """Patch rows and columns of one crop: (27, 27) as released."""
    return processor.image_size[0] // processor.patch_size, processor.image_size[1] // processor.patch_size


def canvas_grid(processor: Processor, tiling: tuple[int, int]) -> tuple[int, int]:
    """Patch rows and columns of the canvas that ``tiling`` = (rows, columns) of crops cover: (2, 3) gives (46, 65)."""
    rows, columns = patch_grid(processor)
    margins = processor.overlap_margins
    return canvas_patches(tiling[0], rows, margins), canvas_patches(tiling[1], columns, margins)


def image_ids(grid: tuple[int, int, int, int], processor: Processor, tokens: Tokens) -> np.ndarray:
    """Ids of one image with grid (low rows, low columns, high rows, high columns), counted in groups: int32 [T].

    The low-res view first, then the crops' canvas; the k-th ``image_patch`` is the k-th row of the group table.
    With column tokens for the canvas and none for the low-res view, as released, a grid of (1, 2, 2, 3) gives::

        low_res_image_start patch patch end
        image_start patch patch patch column patch patch patch column end
    """
    low_rows, low_columns, rows, columns = grid
    start = tokens.low_res_image_start if processor.single_crop_start_token else tokens.image_start
    low = _view(low_rows, low_columns, start, processor.single_crop_column_tokens, tokens)
    high = _view(rows, columns, tokens.image_start, processor.column_tokens, tokens)
    return np.array(low + high, np.int32)


def _view(rows: int, columns: int, start: int, column_tokens: bool, tokens: Tokens) -> list[int]:
    row = [tokens.image_patch] * columns + [tokens.image_column] * column_tokens
    return [start, *(row * rows), tokens.image_end]


def token_types(ids: np.ndarray, tokens: Tokens) -> np.ndarray:
    """Types of int [S] ids: int32 [S], 1 for the eight image-part ids, which see each other both ways, else 0."""
    return np.isin(ids, tokens.image_part).astype(np.int32)
