"""The default checkpoint understands its pictures: change what is drawn, and the answer of ``molmo2 ask`` changes.

Things stand on the grid of four columns and rows that the checkpoint was trained on.
"""

from pathlib import Path

import numpy as np
import pytest
from asking import answered
from PIL import Image

from molmo2_iree.runtime.points import parse_points
from training.drawing import COLOURS
from training.world import Scene, Thing, draw_scene

LEFT, RIGHT = (0.125, 0.375), (0.875, 0.625)


def drawn(path: Path, *things: Thing, height: int = 132, width: int = 180, turned: bool = False) -> Path:
    """A picture of the things on a textured background; ``turned`` upside down."""
    pixels = draw_scene(Scene(height, width, things, seed=7))
    Image.fromarray(np.ascontiguousarray(pixels[::-1, ::-1]) if turned else pixels).save(path)
    return path


def one(colour: str, kind: str, x: float = 0.375, y: float = 0.375, radius: float = 0.25) -> Thing:
    return Thing(kind, colour, x, y, radius)


@pytest.mark.parametrize("colour", COLOURS)
def test_another_colour_another_answer(colour: str, tmp_path: Path) -> None:
    picture = drawn(tmp_path / "a.png", one(colour, "circle"))
    assert answered("--image", picture, "What colour is the object?") == f"The object is {colour}.\n"


def test_without_the_picture_no_colour_is_named() -> None:
    said = answered("What colour is the object?")
    assert not any(colour in said for colour in COLOURS)
    assert said == "There is no picture.\n"


def test_which_picture_changes_when_the_two_are_swapped(tmp_path: Path) -> None:
    star, square = drawn(tmp_path / "a.png", one("red", "star")), drawn(tmp_path / "b.png", one("blue", "square"))
    question = "Which picture shows a star?"
    assert answered("--image", star, "--image", square, question) == "The first picture.\n"
    assert answered("--image", square, "--image", star, question) == "The second picture.\n"


def test_left_and_right_change_when_the_drawing_is_turned_round(tmp_path: Path) -> None:
    things = one("red", "circle", *LEFT, radius=0.18), one("blue", "square", *RIGHT, radius=0.18)
    question = "Is the red circle left or right of the blue square?"
    assert answered("--image", drawn(tmp_path / "a.png", *things), question) == "It is on the left.\n"
    assert answered("--image", drawn(tmp_path / "b.png", *things, turned=True), question) == "It is on the right.\n"


def test_counting(tmp_path: Path) -> None:
    places = [(0.125, 0.375), (0.375, 0.875), (0.875, 0.625)]
    things = [one("green", "square", x, y, 0.16) for x, y in places]
    for count in (1, 2, 3):
        wanted = "There is 1 object.\n" if count == 1 else f"There are {count} objects.\n"
        assert answered("--image", drawn(tmp_path / "a.png", *things[:count]), "How many objects are there?") == wanted


@pytest.mark.parametrize(("x", "y"), [(0.125, 0.375), (0.875, 0.125), (0.625, 0.875)])
def test_pointing_follows_the_thing(x: float, y: float, tmp_path: Path) -> None:
    picture = drawn(tmp_path / "a.png", one("yellow", "triangle", x, y, 0.18), one("blue", "cross", 1 - x, 1 - y, 0.18))
    (point,) = parse_points(answered("--image", picture, "Point to the yellow triangle."))
    assert point.label == "yellow triangle"
    assert np.hypot(point.x - x, (point.y - y) * 132 / 180) < 0.05
