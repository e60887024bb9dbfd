"""Reading a prompt, cut into units short enough to run between two decode steps, and whether it fits at all.

Pictures are looked at a few crops at a time. Prefill then reads the image part and as much text after it as its bucket
holds; the rest follows in pieces of extend. What a kept prefix or the picture cache has is not read again. The cut
depends on the request and the bundle's buckets alone, so an answer does not depend on companions.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from molmo2_iree.config import Buckets, first_that_fits
from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.checks import whole
from molmo2_iree.runtime.prefix import Prompt


@dataclass(frozen=True)
class Look:
    """Vision on crops ``first`` to ``last`` (exclusive) of a picture; ``whole`` if these are its last."""

    image: int
    first: int
    last: int
    whole: bool


@dataclass(frozen=True)
class Prefill:
    """Merge and prefill of the first ``stop`` ids, the image part among them."""

    stop: int


@dataclass(frozen=True)
class Extend:
    """Ids ``start`` to ``stop`` (exclusive), which are text."""

    start: int
    stop: int


Unit = Look | Prefill | Extend


def check_room(prompt: Prompt, max_tokens: int, buckets: Buckets, context: int) -> None:
    """Refuse, with RequestError and the numbers, a request that no bucket or the context does not hold."""
    length, image_end, most = len(prompt.ids), prompt.image_end, buckets.tokens[-1]
    if image_end > most:
        raise RequestError(
            "prompt",
            got=f"{image_end} tokens up to the end of {len(prompt.crops)} pictures",
            expected=f"at most {most}, the largest of buckets.tokens",
            fix="give fewer pictures, or build with a larger bucket",
        )
    if length >= context:
        raise RequestError(
            "prompt",
            got=f"{length} tokens",
            expected=f"at most {context - 1}: the context holds {context}, the answer included",
            fix="give a shorter question or fewer pictures, or build with a larger cache.context",
        )
    whole(f"max tokens, after a prompt of {length} in a context of {context}", max_tokens, 1, context - length)


def plan_reading(prompt: Prompt, reused: int, known: Collection[str], buckets: Buckets) -> Iterator[Unit]:
    """The units that read a prompt of which ``reused`` rows are there; ``known`` are digests that need no look.

    With crops (3, 5), tokens (128, 256) and extend (16, 64), 300 ids of text give Prefill(128), Extend(128, 192),
    Extend(192, 256), Extend(256, 300). A picture of 5 crops and an image part of 200 ids in the same 300 give
    Look(0, 0, 3), Look(0, 3, 5), Prefill(256), Extend(256, 300).
    """
    done = reused
    if not reused:
        seen = set(known)
        for image, (digest, crops) in enumerate(zip(prompt.digests, prompt.crops, strict=True)):
            if digest not in seen:
                yield from _looks(image, crops, buckets.crops[0])
            seen.add(digest)
        bucket = first_that_fits(buckets.tokens, max(prompt.image_end, 1)) or buckets.tokens[-1]
        done = min(len(prompt.ids), bucket)
        yield Prefill(done)
    piece = buckets.extend[-1]
    for start in range(done, len(prompt.ids), piece):
        yield Extend(start, min(start + piece, len(prompt.ids)))


def _looks(image: int, crops: int, each: int) -> Iterator[Look]:
    for first in range(0, crops, each):
        last = min(first + each, crops)
        yield Look(image, first, last, whole=last == crops)
