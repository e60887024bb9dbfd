import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.preprocess.samples import RELEASED, SIZES, processors

from molmo2_iree.architecture import Processor
from molmo2_iree.preprocess.tiling import choose_tiling


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_examples_of_the_contract(size: tuple[int, int]) -> None:
    assert choose_tiling(*size, RELEASED.processor) == SIZES[size][0]


def by_loop(height: int, width: int, processor: Processor) -> tuple[int, int]:
    most, margin = processor.max_crops, sum(processor.overlap_margins) * processor.patch_size
    window = processor.image_size[0] - margin
    best, best_key = (0, 0), None
    sides = [(i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most]
    scales = {}
    for i, j in sorted(sides, key=lambda t: (t[0] * t[1], t[0])):
        pair = []
        for tiles, size in ((i, height - margin), (j, width - margin)):
            filled = np.float32(tiles * window)
            pair.append(np.float32(np.inf) if size == 0 else filled / np.float32(size))
        scales[i, j] = min(pair)
    shrinking = all(scale < 1 for scale in scales.values())
    for tiling, scale in scales.items():
        key = -scale if shrinking else (scale if scale >= 1 else np.float32(1e10))
        if best_key is None or key < best_key:
            best, best_key = tiling, key
    return best


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_any_size_as_released(height: int, width: int) -> None:
    assert choose_tiling(height, width, RELEASED.processor) == by_loop(height, width, RELEASED.processor)


@given(st.integers(1, 400), st.integers(1, 400), processors())
def test_any_size_any_processor(height: int, width: int, processor: Processor) -> None:
    assert choose_tiling(height, width, processor) == by_loop(height, width, processor)


@given(st.integers(1, 111), st.integers(1, 16_384))
def test_a_side_below_the_margin_gives_one_crop(short: int, long: int) -> None:
    assert choose_tiling(short, long, RELEASED.processor) == (1, 1)
    assert choose_tiling(long, short, RELEASED.processor) == (1, 1)


@pytest.mark.parametrize(("width", "columns"), [(300, 1), (378, 1), (379, 2), (645, 3), (2240, 8), (2241, 8)])
def test_a_side_of_exactly_the_margin_leaves_the_choice_to_the_other(width: int, columns: int) -> None:
    assert choose_tiling(112, width, RELEASED.processor)[1] in (columns, 1)
    assert choose_tiling(112, width, RELEASED.processor) == by_loop(112, width, RELEASED.processor)
