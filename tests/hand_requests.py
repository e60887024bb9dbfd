"""Requests for the embedded checkpoint made by hand: textured patches, small group tables, ids spelled out."""

from typing import Any

import numpy as np

from molmo2_iree.build.embedded import DEFAULT, Variant

PART = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>")


def texture(generator: np.random.Generator, side: int = 98, patch: int = 14) -> np.ndarray:
    """One crop of waves and a little noise: float32 [49, 588], patches row-major, values row, column, RGB."""
    rows, columns = np.mgrid[:side, :side] / side
    picture = generator.uniform(-0.1, 0.1, (side, side, 3))
    for channel in range(3):
        across, down, phase = generator.uniform(2, 40, 3)
        picture[..., channel] += 0.8 * np.sin(across * columns + down * rows**2 + phase)
    grid = side // patch
    cut = picture.reshape(grid, patch, grid, patch, 3).transpose(0, 2, 1, 3, 4)
    return np.clip(cut, -1, 1).reshape(grid**2, -1).astype(np.float32)


def windows(numbers: np.ndarray) -> np.ndarray:
    """2x2 windows of a grid of patch numbers, padded with -1 at the bottom and right: [[0, 1, 2]] gives two rows."""
    padded = np.pad(numbers, [(0, side % 2) for side in numbers.shape], constant_values=-1)
    rows, columns = (side // 2 for side in padded.shape)
    return padded.reshape(rows, 2, columns, 2).transpose(0, 2, 1, 3).reshape(-1, 4).astype(np.int32)


def _picture(tiles: int, variant: Variant) -> tuple[np.ndarray, list[int]]:
    """Groups and ids of a picture cut into a row of ``tiles`` crops that overlap by one patch on either side."""
    crops = [np.arange(49).reshape(7, 7) + 49 * crop for crop in range(1 + tiles)]
    canvas = np.concatenate(
        [crop[:, 1 if k else 0 : 6 if k < tiles - 1 else 7] for k, crop in enumerate(crops[1:])], axis=1
    )
    columns = -(-canvas.shape[1] // 2)
    start, end, patch, column, low = (variant.token(name) for name in PART)
    ids = [low, *[patch] * 16, end, start, *([*[patch] * columns, column] * 4), end]
    return np.concatenate([windows(crops[0]), windows(canvas)]), ids


def request(
    seed: int, tiles: tuple[int, ...], text: bytes = b"What is this?", variant: Variant = DEFAULT
) -> dict[str, Any]:
    """Arguments for both references: one picture for each entry of ``tiles``, before the text."""
    generator = np.random.default_rng(seed)
    pictures = [_picture(count, variant) for count in tiles]
    ids = [variant.token(variant.bos), *(token for _, part in pictures for token in part)]
    ids += [variant.token("<|im_start|>"), *text, variant.token("<|im_end|>"), 10, variant.token("<|im_start|>")]
    crops = [1 + count for count in tiles]
    patches = [texture(generator) for _ in range(sum(crops))]
    return {
        "ids": np.array(ids, np.int32),
        "types": np.isin(ids, [variant.token(name) for name in PART]).astype(np.int32),
        "patches": np.stack(patches) if patches else np.zeros((0, 49, 588), np.float32),
        "groups": np.concatenate([np.zeros((0, 4), np.int32), *(groups for groups, _ in pictures)]),
        "crops": crops,
        "group_counts": [len(groups) for groups, _ in pictures],
    }
