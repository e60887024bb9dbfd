"""How many rows and columns of crops a picture gets (contract 3.3)."""

import numpy as np

from molmo2_iree.architecture import Processor, tilings


def choose_tiling(height: int, width: int, processor: Processor) -> tuple[int, int]:
    """(rows, columns) of crops for a picture of ``height`` x ``width`` pixels.

    All in float32: the scale of a tiling is how much the picture (less the margins, which may leave nothing or less)
    must grow to fill it. The smallest scale of 1 or more wins; if every tiling shrinks the picture, the largest scale.
    The first of equals wins. Released sizes: 480 x 640 gives (2, 2), 1080 x 1920 gives (2, 4), 60 x 2000 gives (1, 1).
    """
    margin = sum(processor.overlap_margins) * processor.patch_size
    window = np.array([side - margin for side in processor.image_size])
    candidates = tilings(processor.max_crops)
    inner = np.array([height - margin, width - margin]).astype(np.float32)
    with np.errstate(divide="ignore"):
        scales = ((np.array(candidates) * window).astype(np.float32) / inner).min(axis=1)
    if (scales < 1).all():
        return candidates[int(scales.argmax())]
    return candidates[int(np.where(scales < 1, np.float32(1e10), scales).argmin())]
