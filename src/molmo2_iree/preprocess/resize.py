"""The reference's resize, bit for bit: two-tap bilinear with half-pixel centres and no low-pass filter.

Source of the formula: contract 3.1, the kernel that torch's CPU build runs with more than one thread. A fused
multiply-add is one float64 product and sum, rounded to float32. Where the two output sides add up to 128 pixels or
less, far below any release, torch runs another kernel: a grey level may then differ where the exact result is a tie.
"""

import numpy as np


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """[H, W, 3] to [height, width, 3]: uint8 to uint8 (round half to even), float32 in 0..1 to the same."""
    x_low, x_high, x_low_weight, x_high_weight = axis_taps(pixels.shape[1], width)
    y_low, y_high, y_low_weight, y_high_weight = axis_taps(pixels.shape[0], height)
    rows, place = np.unique(np.concatenate([y_low, y_high]), return_inverse=True)
    needed = pixels[rows]
    lines = _blend(needed[:, x_low], needed[:, x_high], x_low_weight[:, None], x_high_weight[:, None])
    top, bottom = lines[place[:height]], lines[place[height:]]
    values = _blend(top, bottom, y_low_weight[:, None, None], y_high_weight[:, None, None])
    if pixels.dtype == np.uint8:
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return np.clip(values, 0, 1)


def axis_taps(inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The two inputs of each output along one axis and their float32 weights: (low, high, low weight, high weight).

    4 inputs to 2 outputs: low [0, 2], high [1, 3], weights [0.5, 0.5] and [0.5, 0.5]. 2 to 4: low [0, 0, 0, 1],
    high [1, 1, 1, 1], high weights [0, 0.25, 0.75, 0.25] (the last one blends input 1 with itself).
    """
    if inputs == outputs:
        same = np.arange(outputs)
        return same, same, np.ones(outputs, np.float32), np.zeros(outputs, np.float32)
    scale = np.float64(np.float32(inputs) / np.float32(outputs))
    source = np.maximum((scale * (np.arange(outputs) + 0.5) - 0.5).astype(np.float32), np.float32(0))
    low = np.minimum(source.astype(np.int64), inputs - 1)
    high = np.minimum(low + 1, inputs - 1)
    high_weight = np.clip(source - low.astype(np.float32), 0, 1).astype(np.float32)
    return low, high, np.float32(1) - high_weight, high_weight


def _blend(low: np.ndarray, high: np.ndarray, low_weight: np.ndarray, high_weight: np.ndarray) -> np.ndarray:
    """float32 fma(low, low_weight, high * high_weight), the product on the right rounded to float32 first."""
    right = high.astype(np.float32, copy=False) * high_weight
    return (low * low_weight.astype(np.float64) + right).astype(np.float32)
