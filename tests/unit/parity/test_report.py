"""What the page, the JUnit file and the table say, on hand-made gates."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hand_gates import BLOCKS, FAILED, IDS, LOGITS, PASSED, REFUSED, SHIPPED, TOKENS, gate
from hand_records import REASON, record, tolerances

from molmo2_iree.commands.mutants import outcomes_json
from molmo2_iree.config import Tolerance
from molmo2_iree.errors import GateError
from molmo2_iree.parity import report
from molmo2_iree.parity.compare import compare
from molmo2_iree.parity.mutants import MUTANTS
from molmo2_iree.parity.mutate import Outcome
from molmo2_iree.parity.report import Gap, Line, gap_of, judged, stage_order, three_lines, worst_by_key
from molmo2_iree.parity.report_tables import closest_lines, environments, families, layer_figures, number, rows


def test_a_record_judged_gives_lines_with_the_numbers_that_decided() -> None:
    limit = Tolerance(atol=0.5, rtol=0.25, rms=4.0, reason=REASON)
    wrong = compare("vision.block.3", np.array([2.0, 7.0]), np.array([2.0, 4.0]))
    line = judged(record(wrong), tolerances(vision_block=limit), ["vision"])[0]
    assert line == Line(
        "vision.block.3",
        passed=False,
        error=3.0,
        allowed=1.5,
        margin=2.0,
        rms=math.sqrt(4.5),
        rms_allowed=4.0,
        rms_margin=math.sqrt(4.5) / 4,
        index=(1,),
        why="at [1]: got 7.0, expected 4.0, allowed 1.5",
    )
    assert (line.key, line.closest) == ("vision.block", 2.0)


def test_a_line_without_numbers_says_why() -> None:
    limit = Tolerance(atol=1.0, rtol=0.0, rms=1.0, reason=REASON)
    broken = [
        compare("vision.block.0", np.array([np.nan, 1.0]), np.array([2.0, 4.0])),
        compare("vision.block.1", np.zeros(2), np.zeros(3)),
        compare("vision.block.2", np.zeros(0), np.zeros(0)),
    ]
    first, second, empty = judged(record(*broken), tolerances(vision_block=limit), ["vision"])[:3]
    assert first.error is None
    assert "got nan" in first.why
    assert second.why == "shape [2], expected [3]"
    assert (empty.passed, empty.margin, empty.error) == (True, 0.0, None)


def test_states_of_a_gate() -> None:
    assert [one.state for one in (PASSED, FAILED, SHIPPED, REFUSED)] == ["passed", "failed", "differs", "no verdict"]
    assert [one.bad for one in (PASSED, FAILED, SHIPPED, REFUSED)] == [False, True, False, True]
    assert gate("mlx-shipped-text", IDS).state == "agrees"


def test_the_first_divergence_in_three_lines() -> None:
    assert three_lines(FAILED) == [
        "gate native-photo on cpu: first divergent stage vision.block.1, 2 of 4 stages fail",
        "  at [0, 3]: got 1.0, expected 2.0, allowed 1e-05 (4 times its allowance)",
        "  evidence: records/native-photo.json",
    ]
    assert (
        three_lines(FAILED, TOKENS)[0] == "gate native-photo on cpu: divergent stage decode.tokens, 2 of 4 stages fail"
    )
    assert three_lines(REFUSED)[1] == "  not measured: run snakemake gates"


def test_the_factor_is_that_of_the_limit_that_was_missed() -> None:
    only_rms = Line("decode.logits", False, margin=0.5, rms_margin=3.0, why="RMS 3, allowed 1")
    assert three_lines(gate("native-text", only_rms))[1] == "  RMS 3, allowed 1 (3 times its allowance)"


def test_hostile_text_stays_in_its_three_lines() -> None:
    hostile = gate("native-text", Line("a.b", False, why="x\n\r\ny" * 500))
    lines = three_lines(hostile)
    assert len("\n".join(lines).splitlines()) == 3
    assert len(lines[1]) < 400


def test_the_smallest_gap() -> None:
    assert gap_of(np.array([[1, 4, 2], [5, 0, 4.5]])) == Gap(0.5, 1, 2, (0, 2))
    assert gap_of(np.array([[3.0, 3.0]])).distance == 0


def test_stages_in_the_order_of_the_line() -> None:
    some = gate("native-text", *(Line(name, True) for name in "ac"))
    every = gate("native-photo", *(Line(name, True) for name in "abcd"))
    other = gate("mlx-text", *(Line(name, True) for name in "abxd"))
    assert stage_order([some, every]) == ["a", "b", "c", "d"]
    assert stage_order([some, every, other]) == ["a", "b", "x", "c", "d"]
    assert stage_order([]) == []


def test_what_is_closest_to_its_limit() -> None:
    assert {key: (g.name, line.stage) for key, (g, line) in worst_by_key([PASSED, FAILED]).items()} == {
        "vision.block": ("native-photo", "vision.block.1"),
        "decode.logits": ("specification-photo", "decode.logits"),
    }
    assert [line for _, line in closest_lines([PASSED, FAILED], 2)] == [BLOCKS[1], BLOCKS[0]]
    assert closest_lines([PASSED], 1)[0][1] == BLOCKS[0]


def test_stages_with_layers() -> None:
    untouched = Line("prefill.untouched.0", True, exact=True)
    ten = [Line(f"prefill.keys.{n}", True, error=0.0) for n in (10, 9)]
    one = gate("native-text", *BLOCKS, untouched, *ten, LOGITS)
    assert families(stage_order([one]), [one]) == {"vision.block": [0, 1], "prefill.keys": [9, 10]}
    titles = [figure.title for figure in layer_figures([one], ["text"])]
    assert titles[:2] == ["vision.block, worst difference", "vision.block, RMS of the difference"]


def test_rows_of_the_table() -> None:
    assert rows([PASSED, FAILED, SHIPPED, REFUSED]) == [
        ("specification-photo", "passed", "3", "3", "vision.block.0 0.2", "–"),
        ("native-photo", "failed", "4", "2", "vision.block.1 4", f"vision.block.1: {BLOCKS[1].why}"),
        (
            "mlx-shipped-photo",
            "differs, decides nothing",
            "3",
            "2",
            "vision.block.1 4",
            f"vision.block.1: {BLOCKS[1].why}",
        ),
        ("native-text", "no verdict", "0", "0", "–", "not measured:\nrun snakemake gates"),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (0.00012345, "0.000123"), (1234.5, "1.23e+03"), (math.inf, "∞"), (math.nan, "NaN")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_environments_that_differ_between_cases_are_both_named() -> None:
    assert environments([PASSED, SHIPPED])[0] == (
        "specification",
        {"dtype": "float32", "covers": "vision, decode", "deterministic": "yes", "threads": "1"},
    )
    other = gate("specification-text")
    other.environment["threads"] = 2  # type: ignore[index]
    assert dict(environments([PASSED, other]))["specification"]["threads"] == "1 or 2"


def test_outcomes_of_wrong_models_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "mutants.json"
    assert report.read_mutants(path) is None
    mutant = MUTANTS[0]
    path.write_text(outcomes_json("cpu", [Outcome(mutant, mutant.first, 2.5, "why", 1.23)]))
    assert report.read_mutants(path) == {
        "target": "cpu",
        "outcomes": [
            {
                "name": mutant.name,
                "case": mutant.case,
                "first": mutant.first,
                "caught": mutant.first,
                "factor": 2.5,
                "why": "why",
                "seconds": 1.2,
            }
        ],
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"outcomes": [1]}', '{"outcomes": [{"case": "text"}]}'])
def test_a_damaged_file_of_outcomes_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mutants.json"
    path.write_text(text)
    with pytest.raises(GateError, match="outcomes of wrong models"):
        report.read_mutants(path)


def test_survivors_and_exact_ones_have_no_factor() -> None:
    said = json.loads(outcomes_json("cpu", [Outcome(MUTANTS[0], None, None, "every stage passed", 1.0)]))
    assert said["outcomes"][0]["caught"] is None
    assert said["outcomes"][0]["factor"] is None
