"""The frontier decides any tolerance exactly; nothing that is not a number or not the shape gets through."""

import numpy as np
import pytest
from hand_records import REASON, record, tolerances
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from molmo2_iree.config import Tolerance
from molmo2_iree.errors import GateError
from molmo2_iree.parity.compare import compare, frontier
from molmo2_iree.parity.judge import judge, tolerance_key

FLOATS = arrays(np.float64, (3, 4), elements=st.floats(-100, 100))


def test_the_frontier_of_the_docstring() -> None:
    assert frontier(np.array([1.0, 3.0, 2.0]), np.array([5.0, 6.0, 7.0])) == [0, 1]


@given(FLOATS, FLOATS, st.floats(0, 10), st.floats(0, 1))
def test_the_frontier_decides_as_every_element_does(
    got: np.ndarray, reference: np.ndarray, atol: float, rtol: float
) -> None:
    difference, allowed = np.abs(got - reference), atol + rtol * np.abs(reference)
    everywhere = bool((difference <= allowed).all())
    places = frontier(difference, np.abs(reference))
    assert everywhere == all(difference.flat[p] <= allowed.flat[p] for p in places)


@pytest.mark.parametrize(("value", "passes"), [(1.0, True), (1.1, True), (1.11, False), (0.89, False)])
def test_a_difference_is_held_against_atol_and_rtol(value: float, passes: bool) -> None:
    allowed = Tolerance(atol=0.05, rtol=0.051, rms=1.0, reason=REASON)
    entry = compare("vision.block.3", np.array([0.0, value]), np.array([0.0, 1.0]))
    verdict = judge(record(entry), tolerances(vision_block=allowed))[0]
    assert verdict["passed"] is passes


def test_the_rms_ceiling_counts_alone() -> None:
    allowed = Tolerance(atol=1.0, rtol=0.0, rms=0.1, reason=REASON)
    entry = compare("vision.block.3", np.full(10, 0.5), np.zeros(10))
    verdict = judge(record(entry), tolerances(vision_block=allowed))[0]
    assert not verdict["passed"]
    assert "RMS 0.5" in verdict["why"]


def test_the_worst_element_is_named_with_index_got_expected_allowed() -> None:
    allowed = Tolerance(atol=0.5, rtol=0.0, rms=9.0, reason=REASON)
    entry = compare("vision.block.3", np.array([[0.0, 7.0]]), np.array([[0.0, 4.0]]))
    verdict = judge(record(entry), tolerances(vision_block=allowed))[0]
    assert verdict["why"] == "at [0, 1]: got 7.0, expected 4.0, allowed 0.5"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails_whatever_the_tolerance(bad: float) -> None:
    allowed = Tolerance(atol=1e30, rtol=1e30, rms=1e30, reason=REASON)
    entry = compare("vision.block.3", np.array([bad, 1.0]), np.array([0.0, 1.0]))
    assert not judge(record(entry), tolerances(vision_block=allowed))[0]["passed"]


def test_another_shape_fails_even_where_a_prefix_agrees() -> None:
    entry = compare("vision.block.3", np.zeros((3, 2)), np.zeros((4, 2)))
    verdict = judge(record(entry), tolerances(vision_block=Tolerance(atol=1.0, rtol=0.0, rms=1.0, reason=REASON)))[0]
    assert verdict["why"] == "shape [3, 2], expected [4, 2]"


def test_integers_are_compared_exactly() -> None:
    entry = compare("connector.valid", np.array([1, 0, 1]), np.array([1, 1, 1]), exact=True)
    verdict = judge(record(entry), tolerances())[0]
    assert verdict["why"] == "at [1]: got 0.0, expected 1.0, allowed equal"


def test_a_stage_without_tolerance_fails_closed() -> None:
    with pytest.raises(GateError, match=r"tolerances, vision\.block"):
        judge(record(compare("vision.block.3", np.zeros(2), np.zeros(2))), tolerances())


def test_a_missing_stage_fails_closed() -> None:
    short = record()
    short["comparisons"] = [entry for entry in short["comparisons"] if entry["stage"] != "decode.logits"]
    with pytest.raises(GateError, match=r"no comparison of decode\.logits"):
        judge(short, tolerances())


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("vision.block.12", "vision.block"),
        ("vision.features.module", "vision.features"),
        ("decode.logits", "decode.logits"),
    ],
)
def test_numbers_and_builds_share_a_tolerance(stage: str, key: str) -> None:
    assert tolerance_key(stage) == key
