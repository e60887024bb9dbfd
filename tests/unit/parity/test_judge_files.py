"""Records are evidence from a file: damaged ones are refused, and a failure names the first divergent stage."""

import json
from pathlib import Path

import numpy as np
import pytest
from hand_records import REASON, record, tolerances

from molmo2_iree.config import Tolerance
from molmo2_iree.errors import GateError
from molmo2_iree.parity.compare import compare
from molmo2_iree.parity.expected import STAGES
from molmo2_iree.parity.judge import write_verdict
from molmo2_iree.parity.measure import SCHEMA, record_text


def written(tmp_path: Path, *entries: dict, **fields: object) -> Path:
    path = tmp_path / "record.json"
    tmp_path.mkdir(exist_ok=True)
    content = record(*entries) | {"schema_version": SCHEMA, "reference": expected("native"), "informational": False}
    path.write_text(record_text(content | fields))
    return path


def expected(reference: str) -> dict:
    return {"reference": reference, "torch": "2.13.0", "covers": list(STAGES)}


def shipped(tmp_path: Path, *entries: dict, **fields: object) -> Path:
    named: dict = {"gate": "mlx-shipped-photo", "reference": expected("mlx-shipped"), "informational": True}
    return written(tmp_path, *entries, **(named | fields))


HALF = Tolerance(atol=0.5, rtol=0.0, rms=9.0, reason=REASON)


def differ(stage: str, by: float) -> dict:
    return compare(stage, np.array([1.0 + by]), np.array([1.0]))


def test_the_first_divergent_stage_is_named_and_no_verdict_is_left(tmp_path: Path) -> None:
    wrong = [compare(f"vision.block.{i}", np.array([i + 1.0]), np.array([1.0])) for i in range(3)]
    path, output = written(tmp_path, *wrong), tmp_path / "verdict.json"
    with pytest.raises(
        GateError, match=r"first divergent stage vision\.block\.1: .*at \[0\]: got 2\.0.* 2 of 13 stages"
    ):
        write_verdict(path, output, tolerances(vision_block=HALF), expected)
    assert not output.exists()
    assert path.exists()


def test_a_passing_record_leaves_a_verdict_with_margins(tmp_path: Path) -> None:
    path, output = written(tmp_path, compare("vision.block.0", np.array([1.25]), np.array([1.0]))), tmp_path / "v.json"
    said = write_verdict(path, output, tolerances(vision_block=HALF), expected)
    assert "closest to its limit vision.block.0 at 0.50" in said
    assert json.loads(output.read_text())["verdicts"][0]["margin"] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema_version": 1}',
        '{"schema_version": 99, "gate": "g", "target": "t", "comparisons": []}',
        '{"schema_version": 1, "schema_version": 1, "gate": "g", "comparisons": []}',
        '{"schema_version": 1, "gate": "g", "comparisons": [{"stage": "vision.block.0", "rms": NaN}]}',
        '{"schema_version": 1, "gate": "g", "target": "t", "comparisons": [{"stage": "input.ids", "kind": "close"}]}',
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(GateError):
        write_verdict(path, tmp_path / "verdict.json", tolerances(), expected)
    assert not (tmp_path / "verdict.json").exists()


def test_a_record_edited_by_hand_is_refused(tmp_path: Path) -> None:
    """Any number in it, to any other: the record says what its content was."""
    path, output = written(tmp_path, differ("vision.block.0", 2.0)), tmp_path / "verdict.json"
    honest = path.read_text()
    for edited in (honest.replace("3.0", "1.0"), honest.replace('"vision.block.0"', '"vision.block.1"')):
        assert edited != honest
        path.write_text(edited)
        with pytest.raises(GateError, match=r"record\.json: got no usable record \(its content_digest is of other"):
            write_verdict(path, output, tolerances(vision_block=HALF), expected)
    assert not output.exists()


@pytest.mark.parametrize(
    ("gate", "missing"),
    [
        ("native-photo", "connector.tokens.table"),
        ("native-photo", "vision.features.module"),
        ("native-second-turn", "extend.logits.turn"),
        ("native-text", "decode.logits"),
    ],
)
def test_what_a_case_must_show_is_missed_by_name(tmp_path: Path, gate: str, missing: str) -> None:
    turn = compare("extend.logits.turn", np.zeros(1), np.zeros(1))
    entries = [entry for entry in [turn, *record()["comparisons"]] if entry["stage"] != missing]
    path = written(tmp_path, gate=gate, comparisons=entries)
    with pytest.raises(GateError, match=f"record {gate}: got no comparison of {missing}"):
        write_verdict(path, tmp_path / "verdict.json", tolerances(), expected)


def test_another_environment_fails_the_gate_and_leaves_no_verdict(tmp_path: Path) -> None:
    output = tmp_path / "verdict.json"
    for stated, got in (({"torch": "2.12.0"}, "'2.12.0'"), ({"torch": None}, "None"), ({}, "nothing stated")):
        environment = {"reference": "native", "covers": list(STAGES)} | stated
        message = f"gate native-photo, reference native, torch: got {got}, expected '2.13.0'"
        with pytest.raises(GateError, match=message):
            write_verdict(written(tmp_path, reference=environment), output, tolerances(), expected)
    with pytest.raises(GateError, match=r"reference native, reference: got 'mlx', expected 'native'"):
        write_verdict(written(tmp_path, reference=expected("mlx")), output, tolerances(), expected)
    fewer = expected("native") | {"covers": ["vision"]}
    with pytest.raises(GateError, match=r"reference native, covers: got \['vision'\]"):
        write_verdict(written(tmp_path, reference=fewer), output, tolerances(), expected)
    assert not output.exists()


def test_stages_that_a_reference_does_not_cover_are_not_required_and_others_are(tmp_path: Path) -> None:
    def covering(*covers: str) -> dict:
        return {"reference": "mlx", "covers": list(covers)}

    kept = [entry for entry in record()["comparisons"] if entry["stage"].startswith(("input.", "vision.", "merge."))]
    for covers, missing in ((("vision", "merge"), None), (("merge", "decode"), "decode.logits")):
        fields = {"gate": "mlx-photo", "comparisons": kept, "reference": covering(*covers)}
        path, output = written(tmp_path, **fields), tmp_path / "verdict.json"
        wanted = covering(*covers)
        if missing:
            with pytest.raises(GateError, match=f"no comparison of {missing}"):
                write_verdict(path, output, tolerances(), lambda _, wanted=wanted: wanted)
        else:
            said = write_verdict(path, output, tolerances(), lambda _, wanted=wanted: wanted)
            assert "4 comparisons of vision, merge only" in said
            assert json.loads(output.read_text())["covers"] == list(covers)


def test_an_informational_record_is_noted_and_never_passes(tmp_path: Path) -> None:
    entries = [differ("vision.block.0", 0.25), differ("vision.block.1", 2.0), differ("vision.block.2", 3.0)]
    path, output = shipped(tmp_path, *entries), tmp_path / "verdict.json"
    said = write_verdict(path, output, tolerances(vision_block=HALF), expected)
    assert said.startswith("noted mlx-shipped-photo, which decides nothing: first differs at vision.block.1 at [0]")
    verdict = json.loads(output.read_text())
    assert verdict["informational"] is True
    assert verdict["first_difference"]["stage"] == "vision.block.1"
    assert verdict["first_difference"]["worst"] == {"index": [0], "got": 3.0, "expected": 1.0}
    assert verdict["differing_stages"] == 2
    assert [entry["agrees"] for entry in verdict["verdicts"][:3]] == [True, False, False]
    assert '"passed"' not in output.read_text()


def test_an_informational_record_that_agrees_says_so(tmp_path: Path) -> None:
    output = tmp_path / "verdict.json"
    assert "differs nowhere; 0 of 10" in write_verdict(shipped(tmp_path), output, tolerances(), expected)
    assert json.loads(output.read_text())["first_difference"] is None


def test_no_record_can_make_itself_informational(tmp_path: Path) -> None:
    wrong, output = [differ("vision.block.0", 2.0)], tmp_path / "verdict.json"
    records = [
        written(tmp_path / "a", *wrong, informational=True),
        shipped(tmp_path / "b", *wrong, informational=False),
        shipped(tmp_path / "c", *wrong, informational=None),
        shipped(tmp_path / "d", *wrong, informational=1),
    ]
    for path in records:
        with pytest.raises(GateError, match="informational: got"):
            write_verdict(path, output, tolerances(vision_block=HALF), expected)
    assert not output.exists()


def test_an_informational_record_on_other_inputs_fails(tmp_path: Path) -> None:
    other = compare("input.groups", np.array([1]), np.array([2]), exact=True)
    with pytest.raises(GateError, match=r"input\.groups: got other inputs at \[0\]"):
        write_verdict(shipped(tmp_path, other), tmp_path / "verdict.json", tolerances(), expected)
