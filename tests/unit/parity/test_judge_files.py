"""Records are evidence from a file: damaged ones are refused, and a failure names the first divergent stage."""

import json
from pathlib import Path

import numpy as np
import pytest
from hand_records import REASON, record, tolerances

from molmo2_iree.config import Tolerance
from molmo2_iree.errors import GateError
from molmo2_iree.parity.compare import compare
from molmo2_iree.parity.judge import write_verdict
from molmo2_iree.parity.measure import SCHEMA


def written(tmp_path: Path, *entries: dict) -> Path:
    path = tmp_path / "record.json"
    content = record(*entries) | {"schema_version": SCHEMA, "reference": {"reference": "native"}}
    path.write_text(json.dumps(content))
    return path


def test_the_first_divergent_stage_is_named_and_no_verdict_is_left(tmp_path: Path) -> None:
    wrong = [compare(f"vision.block.{i}", np.array([i + 1.0]), np.array([1.0])) for i in range(3)]
    path, output = written(tmp_path, *wrong), tmp_path / "verdict.json"
    allowed = Tolerance(atol=0.5, rtol=0.0, rms=9.0, reason=REASON)
    with pytest.raises(
        GateError, match=r"first divergent stage vision\.block\.1: .*at \[0\]: got 2\.0.* 2 of 10 stages"
    ):
        write_verdict(path, output, tolerances(vision_block=allowed))
    assert not output.exists()
    assert path.exists()


def test_a_passing_record_leaves_a_verdict_with_margins(tmp_path: Path) -> None:
    path, output = written(tmp_path, compare("vision.block.0", np.array([1.25]), np.array([1.0]))), tmp_path / "v.json"
    said = write_verdict(path, output, tolerances(vision_block=Tolerance(atol=0.5, rtol=0.0, rms=9.0, reason=REASON)))
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
        write_verdict(path, tmp_path / "verdict.json", tolerances())
    assert not (tmp_path / "verdict.json").exists()
