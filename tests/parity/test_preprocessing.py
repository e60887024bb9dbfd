"""Preprocessing against the official arithmetic: torch's resize, tables filled by loops. No value may differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from molmo2_iree.architecture import Processor
from molmo2_iree.lock import read_lock
from molmo2_iree.parity.inputs import cut
from molmo2_iree.preprocess.crops import cut_image

PICTURES = 200


def settings_of(processor: Processor) -> dict[str, Any]:
    """The fields of preprocessor_config.json that cut a picture."""
    return {
        "size": dict(zip(("height", "width"), processor.image_size, strict=True)),
        "patch_size": processor.patch_size,
        "overlap_margins": list(processor.overlap_margins),
        "pooling_size": list(processor.pooling_size),
        "max_crops": processor.max_crops,
        "image_mean": list(processor.mean),
        "image_std": list(processor.std),
    }


def picture(number: int) -> np.ndarray:
    """uint8 [H, W, 3] of a random size from 20 to 900 pixels a side: noise or waves."""
    generator = np.random.default_rng(number)
    height, width = (int(side) for side in np.exp(generator.uniform(np.log(20), np.log(900), 2)))
    if number % 2:
        return generator.integers(0, 256, (height, width, 3), np.uint8)
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    waves = np.sin(rows * generator.uniform(0.01, 0.5, 3)) + np.cos(columns * generator.uniform(0.01, 0.5, 3))
    return np.rint((waves + 2) * 63.75).astype(np.uint8)


@pytest.mark.parametrize("lock", ["molmo2-4b", "embedded"])
def test_no_value_differs(lock: str) -> None:
    """The released sizes and the miniature's; 200 pictures each."""
    processor = read_lock(Path(f"config/locks/{lock}.yaml")).architecture.processor
    differing = compared = 0
    tilings = set()
    for number in range(PICTURES):
        pixels = picture(number)
        patches, groups, grid = cut(pixels, settings_of(processor))
        image = cut_image(pixels, processor)
        assert (image.grid, image.crops) == (grid, len(patches))
        assert np.array_equal(image.groups, groups)
        differing += int(np.count_nonzero(image.patches != patches))
        compared += patches.size
        tilings.add(grid)
    assert differing == 0, f"{differing} of {compared} values differ"
    assert len(tilings) >= 8
