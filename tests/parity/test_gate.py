"""The gate on the built bundle passes, stage by stage, for every case of the default configuration."""

from pathlib import Path

import pytest

from molmo2_iree.build.plan import Plan
from molmo2_iree.parity.cases import CASES
from molmo2_iree.parity.judge import judge
from molmo2_iree.parity.measure import measure
from molmo2_iree.parity.reference import read_reference
from molmo2_iree.runtime.model import load


@pytest.mark.parametrize("case", ["text", "photo", "two-pictures"])
@pytest.mark.parametrize("reference", ["specification", "native"])
def test_the_built_bundle_passes(reference: str, case: str, plan: Plan, bundle_folder: Path) -> None:
    model = load(bundle_folder)
    for program in plan.tap_programs:
        model.add_module(program, plan.module_path("cpu", program))
    wanted, _ = read_reference(plan.reference_folder / f"{reference}-{case}.npz")
    entries = measure(model, {program.stage: program for program in plan.tap_programs}, CASES[case], wanted)
    record = {"gate": f"{reference}-{case}", "target": "cpu", "comparisons": entries}
    verdicts = judge(record, plan.config.tolerances["float32"])
    assert [verdict["stage"] for verdict in verdicts if not verdict["passed"]] == []
    assert len(verdicts) > 20
