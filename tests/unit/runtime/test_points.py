"""Points in an answer: what the markup says, and that text which is no markup names none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molmo2_iree.runtime.points import Point, parse_points


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ('<points coords="1 1 500 250">red circle</points>', [Point(1, 1, 0.5, 0.25, "red circle")]),
        (
            'Here: <points coords="1 1 500 250 2 040 960">dots</points>.',
            [Point(1, 1, 0.5, 0.25, "dots"), Point(1, 2, 0.04, 0.96, "dots")],
        ),
        (
            '<points coords="1 1 500 250;2 2 100 1000">dots</points>',
            [Point(1, 1, 0.5, 0.25, "dots"), Point(2, 2, 0.1, 1.0, "dots")],
        ),
        (
            '<points alt="x" coords="1 1 500 250\t3 1 000 000">a</points>',
            [Point(1, 1, 0.5, 0.25, "a"), Point(3, 1, 0.0, 0.0, "a")],
        ),
        ('<tracks coords="0.5 7 500 250,1.0 7 510 250">car</tracks>',
         [Point(0.5, 7, 0.5, 0.25, "car"), Point(1.0, 7, 0.51, 0.25, "car")]),
        ('<points coords="1 1 50 250">two digits</points>', []),
        ('<points coords="1 1 500 2500">out of the picture</points>', []),
        ('<points coords="one 1 500 250">no number</points>', []),
        ('<points coords="">nothing</points>', []),
        ('<points coords="1 1 500 250">not closed', []),
        ("1 1 500 250", []),
    ],
)  # fmt: skip
def test_points(text: str, points: list[Point]) -> None:
    assert parse_points(text) == points


def test_a_point_in_pixels() -> None:
    assert Point(1, 1, 0.5, 0.25, "a").pixel(200, 100) == (100, 25)


MARKED = st.text(alphabet='<>/="pointscrd 0123456789.;,\t', max_size=80)


@given(MARKED.map(lambda inner: f'<points coords="{inner}">x</points>') | MARKED)
def test_any_text_gives_points_inside_the_picture_or_none(text: str) -> None:
    assert all(0 <= point.x <= 1 and 0 <= point.y <= 1 for point in parse_points(text))
