"""Values of a stage's integer arguments, checked on the host: native code reads wherever an index points.

Shapes and dtypes are checked by ``device.Module``; axes as in ``stages``.
"""

from collections.abc import Mapping

import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.errors import RequestError
from molmo2_iree.stages import CacheLayout, Program


def check_values(
    program: Program, values: Mapping[str, np.ndarray], architecture: Architecture, cache: CacheLayout
) -> None:
    """Refuse an index, position or count out of its range; RequestError names argument, place, value and range."""
    sizes, vocabulary = program.sizes(), architecture.text.vocabulary + architecture.text.extra_vocabulary
    where = f"stage {program.stage}"
    if program.stage == "connector":
        _range(f"{where}, groups", values["groups"], -1, sizes["C"] * architecture.vision.patches - 1)
    elif program.stage == "merge":
        _range(f"{where}, ids", values["ids"], 0, vocabulary - 1)
        placeholders = int(np.sum(values["ids"] == architecture.tokens.image_patch))
        _range(f"{where}, count (= image_patch ids)", values["count"], placeholders, placeholders)
    elif program.stage == "prefill":
        _range(f"{where}, types", values["types"], 0, 1)
        _range(f"{where}, length", values["length"], 1, sizes["S"])
        _range(f"{where}, slot", values["slot"], 0, cache.slots - 1)
    elif program.stage == "extend":
        _range(f"{where}, ids", values["ids"], 0, vocabulary - 1)
        _range(f"{where}, length", values["length"], 1, sizes["T"])
        _range(f"{where}, start", values["start"], 0, sizes["X"] - int(values["length"]))
        _range(f"{where}, slot", values["slot"], 0, cache.slots - 1)
    elif program.stage == "decode":
        _range(f"{where}, ids", values["ids"], 0, vocabulary - 1)
        _range(f"{where}, positions", values["positions"], 0, sizes["X"] - 1)
        _range(f"{where}, active", values["active"], 0, 1)


def _range(where: str, values: np.ndarray, low: int, high: int) -> None:
    wrong = np.argwhere((values < low) | (values > high))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        at = f"{where}{list(place) if place else ''}"
        wanted = f"{low} to {high}" if low != high else str(low)
        raise RequestError(
            at, got=int(values[place]), expected=wanted, fix="prepare the request with molmo2_iree.preprocess.prepare"
        )
