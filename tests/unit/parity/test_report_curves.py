"""The SVG curves: places on a logarithmic scale, computed by hand."""

import math
from xml.etree import ElementTree

import pytest

from molmo2_iree.parity.report_curves import FOOT, LEFT, PLOT, RIGHT, TOP, WIDTH, Curve, Scale, chart, scale_of, x_of

SVG = "{http://www.w3.org/2000/svg}"
MIDDLE = (LEFT + WIDTH - RIGHT) / 2


def parsed(*curves: Curve, labels: tuple[str, ...] = ("0", "1"), allowed: tuple[float | None, ...] = ()) -> str:
    drawn = chart(labels, curves, allowed or (None,) * len(labels), "a title")
    ElementTree.fromstring(drawn)
    return drawn


def paths(drawn: str, name: str) -> list[str]:
    return [path.get("d", "") for path in ElementTree.fromstring(drawn).iter("path") if path.get("class") == name]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((0.02, 3.0), Scale(-2, 1)),
        ((1.0,), Scale(-1, 0)),
        ((10.0, 10.0), Scale(0, 1)),
        ((), Scale(-1, 0)),
        ((0.0, math.inf, math.nan, 1e-3), Scale(-4, -3)),
        ((1e-300, 1.0), Scale(-12, 0)),
    ],
)
def test_whole_decades(values: tuple[float, ...], scale: Scale) -> None:
    assert scale_of(values) == scale


def test_heights() -> None:
    scale = Scale(0, 2)
    assert scale.y(1.0) == FOOT
    assert scale.y(10.0) == FOOT - PLOT / 2
    assert scale.y(100.0) == TOP
    assert [scale.y(value) for value in (0.0, 1e-9)] == [FOOT, FOOT]
    assert [scale.y(value) for value in (1e9, math.inf, math.nan)] == [TOP, TOP, TOP]


def test_places() -> None:
    assert x_of(0, 1) == MIDDLE
    assert x_of(1, 3) == MIDDLE
    assert x_of(0, 2) - LEFT == WIDTH - RIGHT - x_of(1, 2)


def test_a_curve_s_points() -> None:
    drawn = parsed(Curve("native-photo", 1, 0, (0.01, 1.0)))
    assert paths(drawn, "curve") == [f"M{x_of(0, 2):.1f} {FOOT:.1f}L{x_of(1, 2):.1f} {TOP:.1f}"]
    circles = list(ElementTree.fromstring(drawn).iter("circle"))
    assert [(circle.get("cx"), circle.get("cy")) for circle in circles] == [
        (f"{x_of(0, 2):.1f}", f"{FOOT:.1f}"),
        (f"{x_of(1, 2):.1f}", f"{TOP:.1f}"),
    ]
    assert circles[0].findtext("title") == "native-photo, 0: 0.01"


def test_a_curve_is_broken_where_nothing_was_measured() -> None:
    drawn = parsed(Curve("a", 0, 1, (1.0, None, 1.0, 0.1)), labels=("a", "b", "c", "d"))
    assert [letter for letter in paths(drawn, "curve")[0] if letter.isalpha()] == ["M", "M", "L"]
    assert "<path" not in chart(["0"], [Curve("a", 0, 0, (None,))], [None], "t")


def test_the_allowance_is_one_line_with_steps() -> None:
    drawn = parsed(
        Curve("a", 0, 0, (0.01, 0.01, 0.01, 0.01)), labels=("0", "1", "2", "3"), allowed=(1.0, 0.1, None, 1.0)
    )
    (line,) = paths(drawn, "allowance")
    assert [letter for letter in line if letter.isalpha()] == ["M", "H", "V", "H", "M", "H"]
    assert line.startswith(f"M{LEFT:.1f} {TOP:.1f}H")
    assert paths(parsed(Curve("a", 0, 0, (1.0, 1.0))), "allowance") == []


def test_what_is_over_its_own_limit_has_a_ring() -> None:
    drawn = parsed(Curve("a", 0, 2, (0.5, 2.0), frozenset({1})), allowed=(1.0, 1.0))
    assert [ring.get("class") for ring in ElementTree.fromstring(drawn).iter("circle")] == ["over"]


def test_many_labels_are_thinned() -> None:
    labels = tuple(str(n) for n in range(90))
    drawn = parsed(Curve("a", 0, 0, (1.0,) * 90), labels=labels)
    words = [text.text for text in ElementTree.fromstring(drawn).iter("text") if text.get("text-anchor") == "middle"]
    assert words == [str(n) for n in range(0, 90, 3)]


def test_words_are_escaped() -> None:
    hostile = '"><script>&'
    drawn = parsed(Curve(hostile, 0, 3, (1.0, 2.0)), labels=(hostile, "b"))
    drawn += chart(["a"], [], [None], hostile)
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn
