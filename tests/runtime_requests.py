"""Payloads and caches that tests of the runtime share."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.preprocess.prompt import messages_for
from molmo2_iree.runtime.device import to_host
from molmo2_iree.runtime.model import Cache, Model

CAT = Path("examples/cat.jpg")


def noise(seed: int, height: int = 140, width: int = 90) -> np.ndarray:
    """A small picture, uint8 [height, width, 3], unlike that of another seed."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def text(model: Model, question: str = "What colours are there?") -> Payload:
    """A prompt without pictures."""
    return model.prepare(messages_for(question), [])


def pictured(model: Model, pictures: Sequence[np.ndarray | Path], question: str = "What is there?") -> Payload:
    """A prompt with pictures."""
    return model.prepare(messages_for(question, len(pictures)), pictures)


def of_length(model: Model, length: int) -> Payload:
    """A text prompt of exactly so many ids: every tilde is one."""
    around = len(text(model, "~").ids) - 1
    payload = text(model, "~" * (length - around))
    assert len(payload.ids) == length
    return payload


def rows(cache: Cache) -> list[np.ndarray]:
    """A copy of every cache array, [slots, ...]."""
    return [to_host(array) for array in cache.arrays]


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal up to the rounding of another order of summing."""
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
