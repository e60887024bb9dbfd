"""Scenes: what stands where in a picture, drawn from a generator, and the picture itself.

A place is in parts of the picture's width and height, 0 to 1, x to the right and y down.
"""

from dataclasses import dataclass

import numpy as np

from training.drawing import COLOURS, SHAPES, background, paint

DIGITS = tuple("0123456789")

APART = 0.22
"""Centres differ by at least this much in x or in y."""

GRID = 4
JITTER = 0.02
"""Things stand near the middles of a grid of so many columns and rows, at most so far away in parts of the picture,
and moved inside where they would be cut off."""


@dataclass(frozen=True)
class Thing:
    """A coloured shape or digit: centre (x, y) in parts of the picture, ``radius`` in parts of its shorter side."""

    kind: str
    colour: str
    x: float
    y: float
    radius: float
    turn: float = 0.0

    @property
    def name(self) -> str:
        """What a question calls it: ``red circle``; a digit is ``red digit``, whichever it is."""
        return f"{self.colour} {'digit' if self.kind in DIGITS else self.kind}"


@dataclass(frozen=True)
class Scene:
    """A picture of ``height`` x ``width`` pixels, its things, and the seed of its background and tints."""

    height: int
    width: int
    things: tuple[Thing, ...]
    seed: int = 0


def make_scene(generator: np.random.Generator, height: int, width: int, *, anywhere: bool = False) -> Scene:
    """A random scene: one digit (about a fifth), one shape, or none to five shapes; on the grid or ``anywhere``."""
    draw = generator.random()
    if draw < 0.2:
        kinds, least, most = [DIGITS[generator.integers(10)]], 0.27, 0.34
    elif draw < 0.4:
        kinds, least, most = [SHAPES[generator.integers(len(SHAPES))]], 0.18, 0.34
    else:
        count = generator.choice(6, p=(0.03, 0.07, 0.225, 0.225, 0.225, 0.225))
        kinds, least, most = (
            [SHAPES[k] for k in generator.integers(len(SHAPES), size=count)],
            0.13,
            (0.21, 0.21, 0.21, 0.21, 0.18, 0.165)[count],
        )
    things = _place(generator, height, width, kinds, (least, most), anywhere)
    return Scene(height, width, things, int(generator.integers(2**31)))


def _place(
    generator: np.random.Generator,
    height: int,
    width: int,
    kinds: list[str],
    sizes: tuple[float, float],
    anywhere: bool,
) -> tuple[Thing, ...]:
    """Things of ``kinds`` that keep apart and inside, each of a size within ``sizes``; starts anew when stuck."""
    side, colours = min(height, width), list(COLOURS)
    while True:
        things: list[Thing] = []
        for kind in kinds:
            for _ in range(40):
                radius = generator.uniform(*sizes)
                inside = np.minimum(np.array([radius * side / width, radius * side / height]) * 1.02, 0.49)
                if anywhere:
                    x, y = generator.uniform(inside, 1 - inside)
                else:
                    x, y = (_near(generator, float(least)) for least in inside)
                colour = colours[generator.integers(len(colours))]
                thing = Thing(kind, colour, float(x), float(y), float(radius), float(generator.uniform(-0.2, 0.2)))
                if all(_apart(thing, other, height, width) for other in things):
                    things.append(thing)
                    break
            else:
                break
        if len(things) == len(kinds):
            return tuple(things)


def _near(generator: np.random.Generator, least: float) -> float:
    """A place near the middle of a column or row, at least ``least`` from both sides."""
    middle = (generator.integers(GRID) + 0.5) / GRID
    return min(max(middle + generator.uniform(-JITTER, JITTER), least), 1 - least)


def _apart(one: Thing, other: Thing, height: int, width: int) -> bool:
    dx, dy = abs(one.x - other.x), abs(one.y - other.y)
    near = (one.radius + other.radius) * 1.08 * min(height, width)
    return max(dx, dy) >= APART and np.hypot(dx * width, dy * height) >= near


def draw_scene(scene: Scene) -> np.ndarray:
    """The picture of a scene: uint8 [height, width, 3], always the same."""
    generator = np.random.default_rng(scene.seed)
    pixels = background(generator, scene.height, scene.width)
    side = min(scene.height, scene.width)
    for thing in scene.things:
        colour = np.array(COLOURS[thing.colour], np.float32) + generator.uniform(-14, 14, 3).astype(np.float32)
        x, y = thing.x * scene.width, thing.y * scene.height
        paint(pixels, thing.kind, x, y, thing.radius * side, thing.turn, colour)
    return np.clip(pixels, 0, 255).astype(np.uint8)
