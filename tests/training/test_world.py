import numpy as np
import pytest

from training.drawing import COLOURS, SHAPES
from training.world import DIGITS, GRID, JITTER, Scene, Thing, draw_scene, make_scene


def scenes(seed: int, count: int) -> list[Scene]:
    generator = np.random.default_rng(seed)
    return [make_scene(generator, 90, 130) for _ in range(count)]


def test_a_seed_gives_the_same_pictures() -> None:
    pictures = [[draw_scene(scene) for scene in scenes(3, 5)] for _ in range(2)]
    assert all(np.array_equal(one, other) for one, other in zip(*pictures, strict=True))
    assert not np.array_equal(pictures[0][0], draw_scene(scenes(4, 1)[0]))


def test_things_lie_inside_and_apart() -> None:
    for scene in scenes(1, 200):
        side = min(scene.height, scene.width)
        for k, thing in enumerate(scene.things):
            reach = thing.radius * side
            assert reach <= thing.x * scene.width <= scene.width - reach
            assert reach <= thing.y * scene.height <= scene.height - reach
            for other in scene.things[k + 1 :]:
                across, down = (thing.x - other.x) * scene.width, (thing.y - other.y) * scene.height
                assert np.hypot(across, down) > (thing.radius + other.radius) * side


@pytest.mark.parametrize("kind", [*SHAPES, *DIGITS])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_thing_lies_where_the_scene_says(kind: str, colour: str) -> None:
    thing = Thing(kind, colour, 0.7, 0.4, 0.25, turn=0.1)
    drawn = draw_scene(Scene(80, 120, (thing,), seed=5)).astype(int)
    changed = np.abs(drawn - draw_scene(Scene(80, 120, (), seed=5))).sum(axis=2) > 60
    rows, columns = np.nonzero(changed)
    assert abs(rows.mean() - 32) < 7
    assert abs(columns.mean() - 84) < 7
    assert rows.min() >= 32 - 25
    assert rows.max() <= 32 + 25
    assert columns.min() >= 84 - 25
    assert columns.max() <= 84 + 25
    assert np.abs(drawn[changed] - COLOURS[colour]).max(axis=1).min() <= 15


def test_shapes_and_digits_are_all_different() -> None:
    plain = draw_scene(Scene(60, 60, (), seed=1)).astype(int)
    masks = [
        np.abs(draw_scene(Scene(60, 60, (Thing(kind, "red", 0.5, 0.5, 0.4),), seed=1)) - plain).sum(axis=2) > 60
        for kind in (*SHAPES, *DIGITS)
    ]
    for k, mask in enumerate(masks):
        assert all((mask ^ other).sum() > 60 for other in masks[k + 1 :])


def test_small_things_stand_near_the_middles_of_the_grid() -> None:
    generator = np.random.default_rng(5)
    for _ in range(200):
        scene = make_scene(generator, 100, 100)
        for thing in scene.things:
            for place in (thing.x, thing.y):
                near = min(abs(place - (cell + 0.5) / GRID) for cell in range(GRID))
                assert near <= JITTER + 1e-9 or abs(min(place, 1 - place) - 1.02 * thing.radius) < 1e-9


def test_five_things_find_their_places_in_every_shape_of_picture() -> None:
    for height, width in ((60, 60), (200, 200), (56, 150), (150, 56)):
        generator = np.random.default_rng(9)
        counts = {len(make_scene(generator, height, width).things) for _ in range(200)}
        assert counts == set(range(6))


def test_anywhere_is_anywhere() -> None:
    generator = np.random.default_rng(5)
    scenes = [make_scene(generator, 100, 100, anywhere=True) for _ in range(300)]
    places = np.array([thing.x for scene in scenes for thing in scene.things])
    off = np.min([np.abs(places - (cell + 0.5) / GRID) for cell in range(GRID)], axis=0)
    assert (off > JITTER).mean() > 0.5
