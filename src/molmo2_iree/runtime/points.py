"""Points that an answer names: Molmo2's own markup, parsed as contract section 8 says.

An answer is untrusted text: what does not parse is left out, never guessed.
"""

import re
from dataclasses import dataclass

SCALE = 1000
"""Coordinates run from 0 to this over a picture's width and height."""

MARKUP = re.compile(r'<(points|tracks)\b[^<>]*?\bcoords="([0-9.\t,:; ]*)"[^<>]*>([^<]*)</\1>')
SEPARATORS = re.compile(r"[\t,:;]")
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
TRIPLE = re.compile(r"([0-9]+) ([0-9]{3,4}) ([0-9]{3,4})(?: |$)")


@dataclass(frozen=True)
class Point:
    """``place`` is the picture's number from 1 (in a track the time in seconds); ``x`` and ``y`` are of 0 to 1."""

    place: float
    identifier: int
    x: float
    y: float
    label: str

    def pixel(self, width: int, height: int) -> tuple[float, float]:
        """Where it lies in a picture of that size: (0.5, 0.25) of 200 x 100 is (100, 25)."""
        return self.x * width, self.y * height


def parse_points(text: str) -> list[Point]:
    """Every point of an answer, in order.

    '<points coords="1 1 500 250 2 040 960">dots</points>' gives picture 1, points 1 at (0.5, 0.25) and 2 at
    (0.04, 0.96); '<points coords="1 1 500 250;2 2 100 100">dots</points>' one in each of two pictures.
    """
    found = []
    for _, coordinates, label in MARKUP.findall(text):
        for group in SEPARATORS.split(coordinates):
            head, _, rest = group.strip(" ").partition(" ")
            if NUMBER.fullmatch(head):
                found += [_point(float(head), label, *map(int, triple)) for triple in TRIPLE.findall(rest)]
    return [point for point in found if point.x <= 1 and point.y <= 1]


def _point(place: float, label: str, identifier: int, x: int, y: int) -> Point:
    return Point(place, identifier, x / SCALE, y / SCALE, label)
