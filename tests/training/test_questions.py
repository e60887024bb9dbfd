import json
from pathlib import Path

import numpy as np
import pytest

from training import questions
from training.evaluate import KINDS, as_ask, held_out, read, tally, write
from training.questions import Ask, compare, judge, point_all
from training.world import Scene, Thing

RED_CIRCLE = Thing("circle", "red", 0.2, 0.3, 0.15)
BLUE_STAR = Thing("star", "blue", 0.7, 0.8, 0.15)
RED_STAR = Thing("star", "red", 0.8, 0.2, 0.15)
SEVEN = Thing("7", "orange", 0.5, 0.5, 0.3)

EMPTY = Scene(100, 100, ())
ONE = Scene(100, 100, (RED_CIRCLE,))
TWO = Scene(100, 200, (BLUE_STAR, RED_CIRCLE))
THREE = Scene(100, 100, (RED_CIRCLE, BLUE_STAR, RED_STAR))
DIGIT = Scene(100, 100, (SEVEN,))


def asked(maker: questions.Maker, scene: Scene) -> set[tuple[str, str]]:
    """What a maker asks about a scene in 400 draws: question and answer."""
    found = [maker(np.random.default_rng(seed), scene) for seed in range(400)]
    return {(ask.question, ask.answer) for ask in found if ask}


@pytest.mark.parametrize(
    ("maker", "scene", "question", "answer"),
    [
        (questions.colour_single, ONE, "What colour is the object?", "The object is red."),
        (questions.colour_single, DIGIT, "Which colour is the digit?", "The digit is orange."),
        (questions.shape_single, ONE, "What shape is the object?", "The object is a circle."),
        (questions.colour, TWO, "What colour is the star?", "The star is blue."),
        (questions.colour, THREE, "What colour is the circle?", "The circle is red."),
        (questions.colour, ONE, "What colour is the star?", "There is no star."),
        (questions.shape, TWO, "Which shape is the blue object?", "The blue object is a star."),
        (questions.shape, ONE, "What shape is the green object?", "There is no green object."),
        (questions.count, EMPTY, "How many objects are there?", "There are 0 objects."),
        (questions.count, ONE, "How many objects are there?", "There is 1 object."),
        (questions.count, THREE, "How many objects are in the picture?", "There are 3 objects."),
        (questions.count_some, THREE, "How many red objects are there?", "There are 2 red objects."),
        (questions.count_some, THREE, "How many circles are there?", "There is 1 circle."),
        (questions.count_some, THREE, "How many crosses are there?", "There are 0 crosses."),
        (questions.side, TWO, "Is the red circle left or right of the blue star?", "It is on the left."),
        (questions.side, TWO, "Is the blue star on the left or on the right of the red circle?", "It is on the right."),
        (questions.digit, DIGIT, "Which digit is this?", "The digit is 7."),
        (questions.digit, TWO, "What digit is shown?", "There is no digit."),
        (questions.exists, TWO, "Is there a red circle?", "Yes."),
        (questions.exists, TWO, "Do you see a red star?", "No."),
        (questions.exists, TWO, "Is there an orange star?", "No."),
        (questions.point, TWO, "Point to the red circle.", '<points coords="1 1 200 300">red circle</points>'),
        (questions.point, DIGIT, "Where is the digit?", '<points coords="1 1 500 500">digit</points>'),
        (questions.point, TWO, "Point to the red star.", "There is no red star."),
        (questions.describe, EMPTY, "Describe the picture.", "There are 0 objects."),
        (questions.describe, DIGIT, "What is in the picture?", "There is an orange digit."),
        (questions.describe, THREE, "What is in the picture?", "There is a red circle, a blue star and a red star."),
    ],
)
def test_answers_to_hand_made_scenes(maker: questions.Maker, scene: Scene, question: str, answer: str) -> None:
    assert (question, answer) in asked(maker, scene)
    assert {told for wanted, told in asked(maker, scene) if wanted == question} == {answer}


@pytest.mark.parametrize(
    ("maker", "scene"),
    [
        (questions.colour_single, TWO),
        (questions.shape_single, DIGIT),
        (questions.side, ONE),
        (questions.count_some, DIGIT),
        (questions.count_some, EMPTY),
    ],
)
def test_what_cannot_be_asked_is_not(maker: questions.Maker, scene: Scene) -> None:
    assert asked(maker, scene) == set()


def test_an_ambiguous_thing_is_not_asked_for() -> None:
    assert not any("star?" in question for question, _ in asked(questions.colour, THREE))
    assert not any("red object" in question for question, _ in asked(questions.shape, THREE))


def test_comparing_two_pictures() -> None:
    found = {
        (ask.question, ask.answer) for seed in range(400) if (ask := compare(np.random.default_rng(seed), ONE, TWO))
    }
    assert ("Which picture has more objects?", "The second picture.") in found
    assert ("Which picture shows a star?", "The second picture.") in found
    assert ("Which picture has a blue object?", "The second picture.") in found
    assert not any("circle" in question for question, _ in found)
    turned = {
        (ask.question, ask.answer) for seed in range(400) if (ask := compare(np.random.default_rng(seed), TWO, ONE))
    }
    assert turned == {(question, "The first picture.") for question, _ in found}


def test_judging_words_and_points() -> None:
    assert judge(Ask("digit", "Which digit is this?", "The digit is 7."), "The digit is 7.")
    assert not judge(Ask("digit", "Which digit is this?", "The digit is 7."), "The digit is 1.")
    wide = Ask("point", "?", '<points coords="1 1 200 300">red circle</points>', (0.2, 0.3), reach=0.5)
    assert judge(wide, '<points coords="1 1 249 300">red circle</points>')
    assert not judge(wide, '<points coords="1 1 251 300">red circle</points>')
    assert judge(wide, '<points coords="1 1 200 399">red circle</points>')
    assert not judge(wide, '<points coords="1 1 200 401">red circle</points>')
    assert not judge(wide, '<points coords="1 1 200 300">red square</points>')
    assert not judge(wide, '<points coords="2 1 200 300">red circle</points>')
    assert not judge(wide, "There is no red circle.")


def test_every_kind_can_be_held_out_and_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, seed=5, per_kind=2)
    requests = read(path)
    assert [request["kind"] for request in requests] == [kind for kind in KINDS for _ in range(2)]
    assert [as_ask(request) for request in requests] == [held_out(kind, 5, k)[0] for kind in KINDS for k in range(2)]
    assert all((tmp_path / name).is_file() for request in requests for name in request["images"])
    assert [len(request["images"]) for request in requests[-4:]] == [2, 2, 0, 0]
    answers = [request["answer"] for request in requests]
    assert tally(requests, answers) == dict.fromkeys(KINDS, (2, 2))
    assert tally(requests, ["?"] * len(answers)) == dict.fromkeys(KINDS, (0, 2))
    assert json.loads(path.read_text().splitlines()[0])["images"] == ["colour-single-0000-1.png"]


def test_pointing_to_everything_goes_from_left_to_right() -> None:
    scene = Scene(100, 100, (Thing("star", "red", 0.7, 0.2, 0.1), Thing("circle", "blue", 0.04, 0.96, 0.1)))
    ask = point_all(np.random.default_rng(0), scene)
    assert ask is not None
    assert ask.answer == '<points coords="1 1 040 960 2 700 200">objects</points>'
    assert point_all(np.random.default_rng(0), Scene(100, 100, ())) is None
