"""The gate on the built bundle: it passes, and the same measure and judge reject a wrong model at the right stage."""

from pathlib import Path

import jax
import numpy as np
import pytest

import molmo2_iree.model.connector
import molmo2_iree.model.text
import molmo2_iree.model.vision
from molmo2_iree.build.compile import run_compiler, target_flags
from molmo2_iree.build.plan import Plan
from molmo2_iree.build.trace import trace
from molmo2_iree.parity.cases import CASES
from molmo2_iree.parity.judge import judge
from molmo2_iree.parity.measure import measure
from molmo2_iree.parity.reference import read_reference
from molmo2_iree.runtime.model import Model, load
from molmo2_iree.stages import Program

PHOTO = "specification-photo"


def failing(model: Model, plan: Plan) -> list[str]:
    """Stages that the gate rejects on the photograph."""
    taps = {program.stage: program for program in plan.tap_programs}
    for program in plan.tap_programs:
        if program.name not in model.modules:
            model.add_module(program, plan.module_path("cpu", program))
    wanted, _ = read_reference(plan.reference_folder / f"{PHOTO}.npz")
    entries = measure(model, taps, CASES["photo"], wanted)
    verdicts = judge({"gate": PHOTO, "target": "cpu", "comparisons": entries}, plan.config.tolerances["float32"])
    return [verdict["stage"] for verdict in verdicts if not verdict["passed"]]


def test_the_built_bundle_passes(plan: Plan, bundle_folder: Path) -> None:
    assert failing(load(bundle_folder), plan) == []


def causal(types: jax.Array, length: jax.Array, causal_image: bool) -> jax.Array:
    rows = np.arange(types.shape[0])
    return (rows[None, :] <= rows[:, None]) & (rows[None, :] < length)


def wrapping(flat: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    return groups >= 0, flat[groups]


MUTANTS = {
    "causal prefill mask": (molmo2_iree.model.text, "prompt_mask", causal, "prefill", "prefill.layer.0"),
    "-1 read as the last patch": (
        molmo2_iree.model.connector,
        "gather_groups",
        wrapping,
        "connector",
        "connector.gathered",
    ),
    "exact GELU": (
        molmo2_iree.model.vision,
        "gelu_tanh",
        lambda x: jax.nn.gelu(x, approximate=False),
        "vision",
        "vision.block.0",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_model_is_rejected_at_its_stage(
    name: str, plan: Plan, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced, compiled and measured like the real one."""
    module, attribute, replacement, stage, first = MUTANTS[name]
    model = load(bundle_folder)
    with monkeypatch.context() as patched:
        patched.setattr(module, attribute, replacement)
        for program in (p for p in (*plan.programs, *plan.tap_programs) if p.stage == stage and needed(p)):
            output = tmp_path / f"{program.name}.vmfb"
            run_compiler(trace(plan.model(), program).encode(), target_flags(plan.target("cpu")), output, program.name)
            model.add_module(program, output)
    assert failing(model, plan)[0] == first


def needed(program: Program) -> bool:
    """The buckets the photograph uses, and the diagnostic builds."""
    return program.taps or program.bucket in ((9,), (128,))
