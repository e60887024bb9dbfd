"""The difference of two arrays, kept so that any tolerance can be applied to it later, exactly.

|got - reference| <= atol + rtol * |reference| holds for every element if it holds for the elements of the frontier:
those with a larger difference than every element of a smaller or equal reference. The frontier is short.
"""

from typing import Any

import numpy as np


def compare(stage: str, got: np.ndarray, reference: np.ndarray, *, exact: bool = False) -> dict[str, Any]:
    """A comparison as plain data: shapes, finite, RMS, worst element, and the frontier or the first unequal element."""
    found: dict[str, Any] = {
        "stage": stage,
        "kind": "exact" if exact else "close",
        "got_shape": list(got.shape),
        "shape": list(reference.shape),
        "dtype": str(got.dtype),
        "elements": int(reference.size),
    }
    if got.shape != reference.shape:
        return found
    if exact:
        return found | _unequal(got, reference)
    values, wanted = got.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(values)
    found["finite"] = bool(finite.all())
    if not finite.all():
        return found | {"frontier": [_element(values, wanted, int(np.argmin(finite)))]}
    difference = np.abs(values - wanted)
    found["rms"] = float(np.sqrt(np.mean(difference**2))) if difference.size else 0.0
    found["reference_rms"] = float(np.sqrt(np.mean(wanted**2))) if wanted.size else 0.0
    return found | {"frontier": [_element(values, wanted, place) for place in frontier(difference, np.abs(wanted))]}


def frontier(difference: np.ndarray, magnitude: np.ndarray) -> list[int]:
    """Flat places of the frontier, by rising magnitude: differences [1, 3, 2] of magnitudes [5, 6, 7] give [0, 1]."""
    flat, size = difference.reshape(-1), magnitude.reshape(-1)
    if not flat.size:
        return []
    order = np.lexsort((-flat, size))
    running = np.maximum.accumulate(flat[order])
    new = np.concatenate([[True], running[1:] > running[:-1]])
    return [int(place) for place in order[new]]


def _element(got: np.ndarray, reference: np.ndarray, place: int) -> dict[str, Any]:
    index = np.unravel_index(place, got.shape)
    value = float(got[index])
    return {
        "index": [int(i) for i in index],
        "got": value if np.isfinite(value) else repr(value),
        "expected": float(reference[index]),
    }


def _unequal(got: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    wrong = np.argwhere(got != reference)
    if not len(wrong):
        return {"unequal": 0}
    index = tuple(int(i) for i in wrong[0])
    return {
        "unequal": len(wrong),
        "first": {"index": list(index), "got": float(got[index]), "expected": float(reference[index])},
    }
