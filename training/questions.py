"""Questions about scenes with their true answers, and the judging of an answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from training.drawing import COLOURS, SHAPES
from training.world import DIGITS, Scene, Thing

NO_PICTURE = "There is no picture."
PLURAL = {"circle": "circles", "square": "squares", "triangle": "triangles", "star": "stars", "cross": "crosses"}

NEAR = 0.05
"""A point counts as right within this part of the picture's width."""


@dataclass(frozen=True)
class Ask:
    """A question and its answer; ``point`` is where the thing asked for lies, in parts of width and height.

    ``reach`` is the picture's height over its width, by which a distance in y becomes one in widths.
    """

    kind: str
    question: str
    answer: str
    point: tuple[float, float] | None = None
    reach: float = 1.0


Maker = Callable[[np.random.Generator, Scene], Ask | None]


Item = TypeVar("Item")


def _pick(generator: np.random.Generator, items: Sequence[Item]) -> Item:
    return items[int(generator.integers(len(items)))]


def _only(scene: Scene, **wanted: str) -> Thing | None:
    found = [thing for thing in scene.things if all(getattr(thing, key) == value for key, value in wanted.items())]
    return found[0] if len(found) == 1 else None


def _shapes(scene: Scene) -> list[Thing]:
    return [thing for thing in scene.things if thing.kind not in DIGITS]


def colour_single(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Colour of the one thing in the picture."""
    if len(scene.things) != 1:
        return None
    word = "digit" if scene.things[0].kind in DIGITS else "object"
    question = _pick(generator, (f"What colour is the {word}?", f"Which colour is the {word}?"))
    return Ask("colour-single", question, f"The {word} is {scene.things[0].colour}.")


def shape_single(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Shape of the one thing in the picture."""
    if len(scene.things) != 1 or not _shapes(scene):
        return None
    question = _pick(generator, ("What shape is the object?", "Which shape is the object?"))
    return Ask("shape-single", question, f"The object is a {scene.things[0].kind}.")


def colour(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Colour of the shape named, or that it is absent."""
    kind = _pick(generator, SHAPES)
    if generator.random() < 0.9 and _shapes(scene):
        kind = _pick(generator, _shapes(scene)).kind
    question = _pick(generator, (f"What colour is the {kind}?", f"Which colour is the {kind}?"))
    if not any(thing.kind == kind for thing in scene.things):
        return Ask("absent", question, f"There is no {kind}.")
    thing = _only(scene, kind=kind)
    return thing and Ask("colour", question, f"The {kind} is {thing.colour}.")


def shape(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Shape of the thing of a colour, or that there is none."""
    shade = _pick(generator, list(COLOURS))
    if generator.random() < 0.9 and _shapes(scene):
        shade = _pick(generator, _shapes(scene)).colour
    question = _pick(generator, (f"What shape is the {shade} object?", f"Which shape is the {shade} object?"))
    if not any(thing.colour == shade for thing in scene.things):
        return Ask("absent", question, f"There is no {shade} object.")
    thing = _only(scene, colour=shade)
    if thing is None or thing.kind in DIGITS:
        return None
    return Ask("shape", question, f"The {shade} object is a {thing.kind}.")


def _a(name: str) -> str:
    return f"an {name}" if name.startswith("orange") else f"a {name}"


def _counted(number: int, one: str, several: str) -> str:
    return f"There is 1 {one}." if number == 1 else f"There are {number} {several}."


def count(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """How many things there are."""
    question = _pick(generator, ("How many objects are there?", "How many objects are in the picture?"))
    return Ask("count", question, _counted(len(scene.things), "object", "objects"))


def count_some(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """How many things have a colour or a shape."""
    if len(_shapes(scene)) < len(scene.things) or not scene.things:
        return None
    thing = _pick(generator, scene.things)
    if generator.random() < 0.5:
        shade = thing.colour if generator.random() < 0.85 else _pick(generator, list(COLOURS))
        number = sum(thing.colour == shade for thing in scene.things)
        one, several = f"{shade} object", f"{shade} objects"
    else:
        one = thing.kind if generator.random() < 0.85 else _pick(generator, SHAPES)
        number, several = sum(thing.kind == one for thing in scene.things), PLURAL[one]
    return Ask("count-some", f"How many {several} are there?", _counted(number, one, several))


def side(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Which of two things is further left."""
    named = [thing for thing in _shapes(scene) if _only(scene, kind=thing.kind, colour=thing.colour)]
    if len(named) < 2:
        return None
    first, second = (named[k] for k in generator.permutation(len(named))[:2])
    if abs(first.x - second.x) < 0.12:
        return None
    question = _pick(
        generator,
        (
            f"Is the {first.name} left or right of the {second.name}?",
            f"Is the {first.name} on the left or on the right of the {second.name}?",
        ),
    )
    return Ask("left-right", question, f"It is on the {'left' if first.x < second.x else 'right'}.")


def digit(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Which digit is drawn."""
    found = [thing for thing in scene.things if thing.kind in DIGITS]
    question = _pick(generator, ("Which digit is this?", "What digit is shown?", "Which digit is in the picture?"))
    if not found:
        return Ask("absent", question, "There is no digit.") if generator.random() < 0.1 else None
    return Ask("digit", question, f"The digit is {found[0].kind}.")


def _wanted(generator: np.random.Generator, scene: Scene, present: float) -> tuple[str, str]:
    """(colour, shape): with chance ``present`` of a thing in the scene, else of none, often close to one of them."""
    shapes = _shapes(scene)
    if shapes and generator.random() < present:
        thing = _pick(generator, shapes)
        return thing.colour, thing.kind
    here = {(thing.colour, thing.kind) for thing in scene.things}
    near = [(thing.colour, kind) for thing in shapes for kind in SHAPES]
    near += [(shade, thing.kind) for thing in shapes for shade in COLOURS]
    near = [pair for pair in near if pair not in here]
    if near and generator.random() < 0.7:
        return _pick(generator, near)
    return _pick(generator, [(c, s) for c in COLOURS for s in SHAPES if (c, s) not in here])


def exists(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Whether a thing of a colour and a shape is there."""
    shade, kind = _wanted(generator, scene, 0.5)
    there = any((thing.colour, thing.kind) == (shade, kind) for thing in scene.things)
    question = _pick(generator, (f"Is there {_a(shade)} {kind}?", f"Do you see {_a(shade)} {kind}?"))
    return Ask("yes-no", question, "Yes." if there else "No.")


def point(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Where a thing is."""
    if scene.things and not _shapes(scene):
        thing, name = scene.things[0], "digit"
    else:
        shade, kind = _wanted(generator, scene, 0.9)
        thing, name = _only(scene, colour=shade, kind=kind), f"{shade} {kind}"
        if thing is None and any(f"{t.colour} {t.kind}" == name for t in scene.things):
            return None
    question = _pick(generator, (f"Point to the {name}.", f"Where is the {name}?"))
    if thing is None:
        return Ask("absent", question, f"There is no {name}.")
    x, y = (min(round(1000 * place), 999) for place in (thing.x, thing.y))
    answer = f'<points coords="1 1 {x:03} {y:03}">{name}</points>'
    return Ask("point", question, answer, (thing.x, thing.y), scene.height / scene.width)


def point_all(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Where everything is, from left to right."""
    if not scene.things:
        return None
    question = _pick(generator, ("Point to the objects.", "Point to all objects."))
    things = sorted(scene.things, key=lambda thing: thing.x)
    places = [(min(round(1000 * thing.x), 999), min(round(1000 * thing.y), 999)) for thing in things]
    listed = " ".join(f"{number} {x:03} {y:03}" for number, (x, y) in enumerate(places, 1))
    answer = f'<points coords="1 {listed}">objects</points>'
    return Ask("point-all", question, answer, None, scene.height / scene.width)


def describe(generator: np.random.Generator, scene: Scene) -> Ask | None:
    """Everything in the picture, from left to right."""
    question = _pick(generator, ("What is in the picture?", "Describe the picture."))
    names = [_a(thing.name) for thing in sorted(scene.things, key=lambda thing: thing.x)]
    if not names:
        return Ask("describe", question, "There are 0 objects.")
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return Ask("describe", question, f"There is {listed}.")


SINGLE: dict[str, tuple[Maker, tuple[float, float]]] = {
    "colour-single": (colour_single, (0.5, 0.4)),
    "shape-single": (shape_single, (0.5, 0.4)),
    "colour": (colour, (1.0, 2.0)),
    "shape": (shape, (0.7, 0.5)),
    "count": (count, (1.0, 0.7)),
    "count-some": (count_some, (0.7, 0.6)),
    "left-right": (side, (1.2, 2.0)),
    "digit": (digit, (2.0, 0.8)),
    "yes-no": (exists, (1.0, 1.2)),
    "point": (point, (2.5, 4.0)),
    "point-all": (point_all, (2.5, 0.5)),
    "describe": (describe, (0.7, 0.6)),
}
"""Kinds of question about one picture: maker, and how often it is asked in each of the mixes that training uses."""


def compare(generator: np.random.Generator, first: Scene, second: Scene) -> Ask | None:
    """Which of two pictures shows something, or more."""
    if generator.random() < 0.5:
        numbers = len(first.things), len(second.things)
        question = _pick(generator, ("Which picture has more objects?", "Which picture shows more objects?"))
        return None if numbers[0] == numbers[1] else Ask("compare", question, _nth(numbers[0] < numbers[1]))
    shapes = [*_shapes(first), *_shapes(second)]
    if not shapes:
        return None
    thing = _pick(generator, shapes)
    whole = {"colour": thing.colour, "kind": thing.kind}
    what = _pick(generator, (whole, {"kind": thing.kind}, {"colour": thing.colour}))
    there = [
        any(all(getattr(other, key) == value for key, value in what.items()) for other in scene.things)
        for scene in (first, second)
    ]
    if there[0] == there[1]:
        return None
    name = " ".join((*what.values(), *(() if "kind" in what else ("object",))))
    question = _pick(generator, (f"Which picture shows {_a(name)}?", f"Which picture has {_a(name)}?"))
    return Ask("compare", question, _nth(there[1]))


def _nth(second: bool) -> str:
    return f"The {'second' if second else 'first'} picture."


_POINTS = re.compile(r'<points coords="1 1 (\d{3,4}) (\d{3,4})">([^<]*)</points>')


_EVERY = re.compile(r'<points coords="1((?: \d \d{3,4} \d{3,4})+)">objects</points>')


def _all_near(asked: Ask, answer: str) -> bool:
    """Whether an answer points to as many things, in the same order, each within NEAR of the width."""
    found, true = _EVERY.fullmatch(answer), _EVERY.fullmatch(asked.answer)
    if found is None or true is None:
        return False
    places, wanted = (np.array(match[1].split(), np.float64).reshape(-1, 3) for match in (found, true))
    if places.shape != wanted.shape:
        return False
    away = (places - wanted)[:, 1:] / 1000 * (1, asked.reach)
    return bool((np.hypot(away[:, 0], away[:, 1]) <= NEAR).all())


def judge(asked: Ask, answer: str) -> bool:
    """Whether ``answer`` is right: the same words, or, for a point, the same thing within NEAR of the width."""
    if asked.kind == "point-all":
        return _all_near(asked, answer.strip())
    if asked.point is None:
        return answer.strip() == asked.answer
    found, true = _POINTS.fullmatch(answer.strip()), _POINTS.fullmatch(asked.answer)
    if found is None or true is None or found[3] != true[3]:
        return False
    dx, dy = (int(found[k + 1]) / 1000 - asked.point[k] for k in (0, 1))
    return bool(np.hypot(dx, dy * asked.reach) <= NEAR)
