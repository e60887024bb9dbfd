"""Draw one thing or one background into an RGB picture. Coordinates are pixels, x to the right and y down."""

import math
from itertools import pairwise

import numpy as np

COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (242, 220, 30),
    "purple": (140, 50, 180),
    "orange": (245, 135, 20),
}
"""Middle of each colour's range, 0..255."""

SHAPES = ("circle", "square", "triangle", "star", "cross")

_OVAL = tuple((0.5 + 0.36 * math.cos(k * math.pi / 6), 0.5 + 0.5 * math.sin(k * math.pi / 6)) for k in range(13))
_TOP = tuple((0.5 + 0.31 * math.cos(k * math.pi / 5), 0.25 + 0.25 * math.sin(k * math.pi / 5)) for k in range(11))
_BOTTOM = tuple((0.5 + 0.36 * math.cos(k * math.pi / 5), 0.74 + 0.26 * math.sin(k * math.pi / 5)) for k in range(11))

STROKES = (
    (_OVAL,),
    (((0.28, 0.22), (0.55, 0.0), (0.55, 1.0)),),
    (((0.15, 0.25), (0.25, 0.06), (0.5, 0.0), (0.75, 0.08), (0.83, 0.28), (0.7, 0.5), (0.13, 1.0), (0.87, 1.0)),),
    (
        ((0.15, 0.12), (0.4, 0.0), (0.7, 0.06), (0.8, 0.25), (0.68, 0.44), (0.42, 0.48)),
        ((0.42, 0.48), (0.72, 0.54), (0.85, 0.75), (0.7, 0.95), (0.4, 1.0), (0.13, 0.88)),
    ),
    (((0.66, 1.0), (0.66, 0.0), (0.12, 0.68), (0.9, 0.68)),),
    (
        ((0.8, 0.0), (0.22, 0.0), (0.18, 0.45), (0.5, 0.38), (0.78, 0.48)),
        ((0.78, 0.48), (0.86, 0.7), (0.74, 0.92), (0.45, 1.0), (0.15, 0.9)),
    ),
    (((0.74, 0.04), (0.45, 0.14), (0.22, 0.42), (0.14, 0.74)), _BOTTOM),
    (((0.13, 0.0), (0.86, 0.0), (0.4, 1.0)),),
    (_TOP, _BOTTOM),
    (tuple((1 - x, 1 - y) for x, y in _BOTTOM), ((0.86, 0.26), (0.78, 0.58), (0.55, 0.86), (0.26, 0.96))),
)
"""Strokes of the digits 0 to 9 in a box of 1 x 1, y down."""


def paint(pixels: np.ndarray, kind: str, x: float, y: float, radius: float, turn: float, colour: np.ndarray) -> None:
    """Draw a shape or a digit ("0".."9") into float32 [H, W, 3]: centre (x, y), ``turn`` in radians."""
    height, width = pixels.shape[:2]
    reach = 1.3 * radius + 2
    top, bottom = max(int(y - reach), 0), min(int(y + reach) + 1, height)
    left, right = max(int(x - reach), 0), min(int(x + reach) + 1, width)
    down = ((np.arange(top, bottom, dtype=np.float32) + 0.5 - y) / radius)[:, None]
    across = ((np.arange(left, right, dtype=np.float32) + 0.5 - x) / radius)[None, :]
    c, s = math.cos(turn), math.sin(turn)
    distance = _distance(kind, across * c + down * s, down * c - across * s)
    cover = np.clip(0.5 - distance * radius, 0, 1)[..., None]
    part = pixels[top:bottom, left:right]
    part += cover * (colour - part)


def _distance(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far each place is outside the thing (below 0: inside); x and y in radii from the centre."""
    if kind == "circle":
        return np.hypot(x, y) - 0.95
    if kind == "square":
        return np.maximum(abs(x), abs(y)) - 0.84
    if kind == "cross":
        return np.minimum(np.maximum(abs(x) - 1, abs(y) - 0.3), np.maximum(abs(y) - 1, abs(x) - 0.3))
    if kind == "triangle":
        return np.maximum(y, abs(x) * math.sqrt(0.75) - y / 2) - 0.58
    if kind == "star":
        sides = [x * math.sin(k * 0.4 * math.pi) - y * math.cos(k * 0.4 * math.pi) for k in range(5)]
        return np.partition(np.stack([-side for side in sides]), 3, axis=0)[3] - 0.37
    return _digit_distance(int(kind), x, y)


def _digit_distance(digit: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance from the strokes of a digit that is 2 radii high and 1.4 wide, less half a stroke's breadth."""
    best = np.full(np.broadcast(x, y).shape, np.inf, np.float32)
    for stroke in STROKES[digit]:
        points = [((px - 0.5) * 1.4, (py - 0.5) * 1.7) for px, py in stroke]
        for (x0, y0), (x1, y1) in pairwise(points):
            dx, dy = x1 - x0, y1 - y0
            along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
            best = np.minimum(best, np.hypot(x - x0 - along * dx, y - y0 - along * dy))
    return best - 0.15


def background(generator: np.random.Generator, height: int, width: int) -> np.ndarray:
    """float32 [H, W, 3]: a nearly grey tone with a gradient, stripes or blotches, and fine noise."""
    tone = generator.uniform(15, 240) + generator.uniform(-10, 10, 3)
    down = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    across = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    angle, strength = generator.uniform(0, 2 * math.pi), generator.uniform(5, 30)
    slope = across * math.cos(angle) + down * math.sin(angle)
    texture = generator.integers(4)
    if texture == 0:
        relief = slope
    elif texture == 1:
        relief = np.sign(np.sin(slope * generator.uniform(6, 25)))
    elif texture == 2:
        relief = np.sin(slope * generator.uniform(6, 25))
    else:
        coarse = generator.uniform(-1, 1, (height // 12 + 2, width // 12 + 2))
        relief = np.repeat(np.repeat(coarse, 12, axis=0), 12, axis=1)[:height, :width]
    noise = generator.standard_normal((height, width), dtype=np.float32) * generator.uniform(0, 8)
    return (tone + (strength * relief + noise)[..., None]).astype(np.float32)
