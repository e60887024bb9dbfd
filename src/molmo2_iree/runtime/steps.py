"""The engine's steps on the device: one unit of a prompt, or one token of every speaking sequence.

Axes: C crops, N patches, F joined vision features, d text width, V vocabulary.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from molmo2_iree.config import first_that_fits
from molmo2_iree.errors import EngineError
from molmo2_iree.preprocess.payload import Image, Payload
from molmo2_iree.runtime.device import Value, to_host
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.prefix import PictureCache, Prompt
from molmo2_iree.runtime.reading import Extend, Look, Prefill, Unit


@dataclass
class Reading:
    """A prompt being read into a slot."""

    payload: Payload
    prompt: Prompt
    slot: int
    tokens: dict[str, np.ndarray]
    """Image tokens float32 [n, d] by picture digest, as far as they are known."""
    looked: list[np.ndarray] = field(default_factory=list[np.ndarray])
    """Features float32 [C, N, F] of the crops of the current picture seen so far."""


class Steps:
    """A model, one cache for all slots, and the picture cache. One thread at a time."""

    def __init__(self, model: Model, picture_bytes: int) -> None:
        self.model, self.pictures = model, PictureCache(picture_bytes)
        self._cache = model.new_cache()

    def begin(self, payload: Payload, prompt: Prompt, slot: int) -> Reading:
        """A reading at its start, with the tokens of pictures that are known."""
        found = {digest: self.pictures.get(digest) for digest in prompt.digests}
        return Reading(payload, prompt, slot, {digest: t for digest, t in found.items() if t is not None})

    def read(self, unit: Unit, reading: Reading) -> np.ndarray | None:
        """Run one unit; logits [V] of its last id, None for a look."""
        if isinstance(unit, Look):
            self._look(unit, reading)
            return None
        if isinstance(unit, Prefill):
            return self._prefill(unit, reading)
        return self._extend(unit, reading)

    def decode(self, ids: Mapping[int, int], positions: Mapping[int, int]) -> dict[int, np.ndarray]:
        """One id for each given slot at its position; logits [V] by slot."""
        return self.model.decode(ids, positions, self._cache)

    def clear(self, slots: Collection[int]) -> None:
        """Zero all rows of slots that a failed step may have spoilt: a NaN in a row that is not read still counts,
        as 0 * NaN is NaN."""
        for place, value in enumerate(self._cache.arrays):
            rows = to_host(value)
            rows[list(slots)] = 0
            self._cache.arrays[place] = self.model.device.put(rows)

    def _look(self, unit: Look, reading: Reading) -> None:
        image = reading.payload.image(unit.image)
        part = Image(image.patches[unit.first : unit.last], image.groups, image.grid, unit.last - unit.first)
        features: Value = self.model.vision(part)
        if not (unit.first == 0 and unit.whole):
            reading.looked.append(to_host(features)[: part.crops])
            if not unit.whole:
                return
            features = self._joined(reading, image.crops)
        tokens = self.model.connector(image, features)
        if not np.isfinite(tokens).all():  # kept, they would fail every later request with this picture
            raise EngineError(
                f"image tokens of picture {unit.image}", got="not finite", expected="numbers", fix="snakemake gates"
            )
        digest = reading.prompt.digests[unit.image]
        reading.tokens[digest] = tokens
        self.pictures.put(digest, tokens)

    def _joined(self, reading: Reading, crops: int) -> np.ndarray:
        """Features [C bucket, N, F] of the picture whose crops have all been looked at."""
        buckets = self.model.bundle.buckets.crops
        joined = np.concatenate(reading.looked)
        reading.looked = []
        bucket = first_that_fits(buckets, crops) or buckets[-1]
        return np.concatenate([joined, np.zeros((bucket - crops, *joined.shape[1:]), joined.dtype)])

    def _prefill(self, unit: Prefill, reading: Reading) -> np.ndarray:
        payload, width = reading.payload, self.model.architecture.text.width
        head = dataclasses.replace(payload, ids=payload.ids[: unit.stop], types=payload.types[: unit.stop])
        parts = [reading.tokens[digest] for digest in reading.prompt.digests]
        tokens = np.concatenate([np.zeros((0, width), np.float32), *parts])
        return self.model.prefill_embeddings(head, self.model.merge(head, tokens), self._cache, reading.slot)

    def _extend(self, unit: Extend, reading: Reading) -> np.ndarray:
        ids = reading.prompt.ids[unit.start : unit.stop]
        return self.model.extend(ids, unit.start, self._cache, reading.slot)
