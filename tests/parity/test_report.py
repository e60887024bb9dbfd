"""The gate page of the built bundle: every record is on it, and it says what the judges said."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from molmo2_iree.build.plan import Plan
from molmo2_iree.cli import application
from molmo2_iree.parity.judge import read_record
from molmo2_iree.parity.report import DIVERGENCE, JUNIT, PAGE, gather, write_report

QWEN = ("--config", "config/family-qwen.yaml")


def test_the_report_of_the_build(plan: Plan, tmp_path: Path) -> None:
    report = write_report(plan, "cpu", tmp_path)
    records = {gate: read_record(plan.record_path("cpu", gate)) for gate in plan.gates}
    assert {gate.name: len(gate.lines) for gate in report.gates} == {
        name: len(record["comparisons"]) for name, record in records.items()
    }
    assert [gate.name for gate in report.informational] == [name for name in plan.gates if "mlx-shipped" in name]
    assert [gate.name for gate in report.bad] == []
    assert all(plan.verdict_path("cpu", gate.name).is_file() for gate in report.gates)
    assert (tmp_path / DIVERGENCE).read_text() == ""

    for gate in report.deciding:
        assert gate.gap is not None
        assert gate.gap.steps == plan.config.gates.greedy_tokens
        assert gate.gap.distance > 0

    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert all(f'id="gate-{name}"' in text for name in plan.gates)
    assert text.count("<img ") == 2 * len({one for name in plan.config.gates.cases for one in pictures(name)})
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:image/jpeg;base64,)""", text)
    cases = ElementTree.parse(tmp_path / JUNIT).getroot()
    assert int(cases.get("tests", "")) == sum(len(record["comparisons"]) for record in records.values())
    assert (cases.get("failures"), cases.get("errors")) == ("0", "0")


def pictures(case: str) -> tuple:
    from molmo2_iree.parity.cases import CASES

    return CASES[case].pictures


def strict(plan: Plan, stage: str) -> Plan:
    """The same plan with nothing allowed at a stage."""
    storage = plan.config.weights.storage
    limits = plan.limits | {stage: plan.limits[stage].model_copy(update={"atol": 1e-12, "rms": 1e-12})}
    return replace(plan, config=plan.config.model_copy(update={"tolerances": {storage: limits}}))


def test_a_failure_is_on_the_page_in_the_file_and_in_three_lines(plan: Plan, tmp_path: Path) -> None:
    report = write_report(strict(plan, "vision.block"), "cpu", tmp_path)
    assert {gate.state for gate in report.deciding} == {"passed", "failed"}, "the cases of text have no picture"
    assert {gate.case for gate in report.deciding if not gate.bad} == {"text", "full-tokens", "over-tokens"}
    lines = (tmp_path / DIVERGENCE).read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("gate specification-photo on cpu: first divergent stage vision.block.0, ")
    assert lines[2] == f"  evidence: {plan.record_path('cpu', 'specification-photo')}"
    assert lines[0] in (tmp_path / PAGE).read_text(encoding="utf-8")
    failures = list(ElementTree.parse(tmp_path / JUNIT).iter("failure"))
    assert str(failures[0].text).splitlines() == lines
    assert len(failures) == sum(len(gate.failed) for gate in report.deciding)


def test_a_missing_record_is_said(plan: Plan) -> None:
    limits = plan.config.gates.model_copy(update={"greedy_tokens": plan.config.gates.greedy_tokens + 1})
    other = replace(plan, config=plan.config.model_copy(update={"gates": limits}))
    assert {gate.refused for gate in gather(other, "cpu").gates} == {"not measured: run snakemake gates"}


def test_the_verb(plan: Plan, tmp_path: Path) -> None:
    done = CliRunner().invoke(application(), ["report", *QWEN, "--target", "cpu", "--output", str(tmp_path / "gates")])
    assert done.exit_code == 0, done.output
    assert f"page: {tmp_path / 'gates' / PAGE}" in done.output
    table = [line.split()[0] for line in done.output.splitlines() if line.startswith("  ")]
    assert table == ["gate", *plan.gates]


@pytest.mark.parametrize("target", ["cpu-arm64", "nowhere"])
def test_a_target_without_gates_is_refused(plan: Plan, tmp_path: Path, target: str) -> None:
    done = CliRunner().invoke(application(), ["report", *QWEN, "--target", target, "--output", str(tmp_path)])
    assert done.exit_code != 0
    assert "expected a selected target whose gates run here: cpu" in str(done.exception)
