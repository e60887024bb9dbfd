"""What is not computed twice: the rows a slot still holds of a finished request, and the tokens of pictures seen.

A prompt continues a kept prefix only where all ids agree, all pictures do by content, and the whole image part of
both lies within what is shared: image tokens see each other in both directions, so rows before a picture that the
other does not have were computed from it.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from molmo2_iree.preprocess.payload import Image, Payload


@dataclass(frozen=True, eq=False)
class Prompt:
    """What a prompt is compared and planned by."""

    ids: np.ndarray
    """int32 [S]."""
    image_end: int = 0
    """Rows up to and including the last id of the image part; 0 without pictures."""
    digests: tuple[str, ...] = ()
    """A content digest for each picture."""
    crops: tuple[int, ...] = ()
    """Crops of each picture."""


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows that a slot holds and nobody owns: ids int32 [rows], and the image part among them."""

    ids: np.ndarray
    image_end: int
    digests: tuple[str, ...]


def read_prompt(payload: Payload) -> Prompt:
    """The ids, image part and picture digests of a checked payload."""
    image_part = np.flatnonzero(payload.types)
    return Prompt(
        ids=payload.ids,
        image_end=int(image_part[-1]) + 1 if len(image_part) else 0,
        digests=tuple(picture_digest(image) for image in payload),
        crops=tuple(int(count) for count in payload.crops),
    )


def picture_digest(image: Image) -> str:
    """sha256 of all that the stages read of a picture: its patches, groups and grid, sizes included."""
    hashed = hashlib.sha256(repr((image.patches.shape, image.groups.shape, image.grid)).encode())
    hashed.update(np.ascontiguousarray(image.patches).data)
    hashed.update(np.ascontiguousarray(image.groups).data)
    return hashed.hexdigest()


def shared_rows(kept: Kept | None, prompt: Prompt) -> int:
    """Rows of ``kept`` that ``prompt`` can go on from; the last id is always read, as its logits are wanted.

    Kept ids [1, 2, 3] share 2 rows with the prompts [1, 2, 4] and [1, 2, 3, 9] 3, and [1, 2, 3] itself 2.
    With other pictures, or an image part that is not shared whole, none.
    """
    if kept is None or kept.digests != prompt.digests:
        return 0
    most = min(len(kept.ids), len(prompt.ids) - 1)
    differing = np.flatnonzero(kept.ids[:most] != prompt.ids[:most])
    shared = int(differing[0]) if len(differing) else most
    return shared if shared >= max(kept.image_end, prompt.image_end) else 0


class PictureCache:
    """Image tokens float32 [n, d] by picture digest, the least recently used dropped beyond a budget of bytes."""

    def __init__(self, budget: int) -> None:
        self._budget, self.held = budget, 0
        self._tokens: OrderedDict[str, np.ndarray] = OrderedDict()

    def get(self, digest: str) -> np.ndarray | None:
        """The tokens of a picture, now the most recently used, or None."""
        tokens = self._tokens.get(digest)
        if tokens is not None:
            self._tokens.move_to_end(digest)
        return tokens

    def put(self, digest: str, tokens: np.ndarray) -> None:
        """Keep a picture's tokens; one that alone is over the budget is not kept."""
        if tokens.nbytes > self._budget or digest in self._tokens:
            return
        self._tokens[digest] = tokens
        self.held += tokens.nbytes
        while self.held > self._budget:
            self.held -= self._tokens.popitem(last=False)[1].nbytes
