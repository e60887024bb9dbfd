"""Prompts and sequences by hand, for what needs no device."""

import numpy as np

from molmo2_iree.config import Buckets
from molmo2_iree.runtime.prefix import Kept, Prompt
from molmo2_iree.runtime.sequence import Sequence

BUCKETS = Buckets(crops=(3, 5, 9), tokens=(128, 256), extend=(16, 64), slots=(1, 2, 4), context=(256, 1024))


def words(*ids: int) -> Prompt:
    """A prompt without pictures."""
    return Prompt(np.array(ids, np.int32))


def counted(length: int, image_end: int = 0, digests: tuple[str, ...] = (), crops: tuple[int, ...] = ()) -> Prompt:
    """Ids 0, 1, 2, ... of which the first ``image_end`` are the image part's."""
    return Prompt(np.arange(length, dtype=np.int32), image_end, digests, crops)


def kept(*ids: int, image_end: int = 0, digests: tuple[str, ...] = ()) -> Kept:
    return Kept(np.array(ids, np.int32), image_end, digests)


def sequence(number: int = 0, length: int = 20, max_tokens: int = 4, first: int = 0) -> Sequence:
    """A sequence whose ids begin at ``first``, so that two of different ``first`` share nothing."""
    return Sequence(number, Prompt(np.arange(first, first + length, dtype=np.int32)), max_tokens)
