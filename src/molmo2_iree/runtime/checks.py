"""What a caller passes, checked on the host before any module sees it: native code reads wherever an index points.

Shapes and dtypes of a module's arguments are checked by ``device.Module``; axes as in ``stages``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.errors import RequestError
from molmo2_iree.stages import CacheLayout, Program

PREPARE = "prepare the request with molmo2_iree.preprocess.prepare"


def check_values(
    program: Program, values: Mapping[str, np.ndarray], architecture: Architecture, cache: CacheLayout
) -> None:
    """Refuse an index, position or count out of its range; RequestError names argument, place, value and range."""
    sizes, vocabulary = program.sizes(), architecture.text.vocabulary + architecture.text.extra_vocabulary
    where = f"stage {program.stage}"
    if program.stage == "connector":
        check_range(f"{where}, groups", values["groups"], -1, sizes["C"] * architecture.vision.patches - 1)
    elif program.stage == "merge":
        check_range(f"{where}, ids", values["ids"], 0, vocabulary - 1)
        placeholders = int(np.sum(values["ids"] == architecture.tokens.image_patch))
        check_range(f"{where}, count (= image_patch ids)", values["count"], placeholders, placeholders)
    elif program.stage == "prefill":
        check_range(f"{where}, types", values["types"], 0, 1)
        check_range(f"{where}, length", values["length"], 1, sizes["S"])
        check_range(f"{where}, slot", values["slot"], 0, cache.slots - 1)
    elif program.stage == "extend":
        check_range(f"{where}, ids", values["ids"], 0, vocabulary - 1)
        check_range(f"{where}, length", values["length"], 1, sizes["T"])
        check_range(f"{where}, start", values["start"], 0, sizes["X"] - int(values["length"]))
        check_range(f"{where}, slot", values["slot"], 0, cache.slots - 1)
    elif program.stage == "decode":
        check_range(f"{where}, ids", values["ids"], 0, vocabulary - 1)
        check_range(f"{where}, positions", values["positions"], 0, sizes["X"] - 1)
        check_range(f"{where}, active", values["active"], 0, 1)


def check_range(where: str, values: np.ndarray, low: int, high: int) -> None:
    """Refuse the first of ``values`` that is not in ``low`` to ``high``."""
    wrong = np.argwhere((values < low) | (values > high))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        at = f"{where}{list(place) if place else ''}"
        raise RequestError(at, got=int(values[place]), expected=_span(low, high), fix=PREPARE)


def whole(where: str, value: Any, low: int, high: int) -> int:
    """A Python or numpy integer in ``low`` to ``high``; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise RequestError(where, got=_short(value), expected=_span(low, high), fix="pass an integer in that range")
    return int(value)


def wholes(where: str, values: Any, low: int, high: int) -> np.ndarray:
    """A list or an array [n] of integers in ``low`` to ``high``, as int32 [n]."""
    listed = values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values
    if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
        raise RequestError(where, got=_short(values), expected="integers in a list", fix="pass a list of integers")
    return np.array([whole(f"{where}[{k}]", value, low, high) for k, value in enumerate(listed)], np.int32)


def array(where: str, value: Any, dtype: str, *shape: int | None) -> np.ndarray:
    """A plain numpy array of that dtype and shape, where None is any size; nothing is converted."""
    if type(value) is np.ndarray:
        fits = len(shape) == value.ndim and all(a in (None, b) for a, b in zip(shape, value.shape, strict=True))
        if fits and value.dtype == dtype:
            return value
        got = f"{value.dtype} {list(value.shape)}"
    else:
        got = _short(value)
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    raise RequestError(where, got=got, expected=f"a numpy array, {dtype} [{sides}]", fix=PREPARE)


def instance(where: str, value: Any, kind: type) -> None:
    """Refuse an object of another class."""
    if not isinstance(value, kind):
        raise RequestError(where, got=type(value).__name__, expected=kind.__name__, fix=PREPARE)


def _span(low: int, high: int) -> str:
    return f"{low} to {high}" if low != high else str(low)


def _short(value: object) -> str:
    """A number as it is, anything else by its type: other people's repr may be long, or fail."""
    if isinstance(value, int | float) and not (isinstance(value, int) and value.bit_length() > 200):
        return repr(value)
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
