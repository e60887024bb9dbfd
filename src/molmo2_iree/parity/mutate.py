"""Prove that the gates can fail: every wrong model of the catalogue must be rejected at the stage it names.

Each mutant runs in a process of its own on a copy of the package with one edit, through the same measure and judge,
against the built bundle's other modules and the specification's stored outputs.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from molmo2_iree.build.plan import Plan
from molmo2_iree.errors import GateError
from molmo2_iree.identity import PACKAGE
from molmo2_iree.manifest import MANIFEST
from molmo2_iree.parity.mutant import Family, Mutant
from molmo2_iree.parity.mutants import MUTANTS

CHILD = "molmo2_iree.parity.mutant_run"


@dataclass(frozen=True)
class Outcome:
    """Where a mutant was caught. ``factor``: how many times its allowance; None for integers and refusals."""

    mutant: Mutant
    caught: str | None
    factor: float | None
    why: str
    seconds: float

    @property
    def as_named(self) -> bool:
        """Caught, and at the stage the catalogue names."""
        return self.caught == self.mutant.first


def family_of(plan: Plan) -> Family:
    """Which of the catalogue's families a checkpoint belongs to."""
    if plan.lock.mask_policy == "causal":
        return "causal"
    return "olmo" if plan.lock.architecture.text.norm_after else "qwen"


def chosen(names: Sequence[str], family: Family) -> list[Mutant]:
    """The family's named mutants, or all of them; GateError for an unknown name."""
    known = {mutant.name: mutant for mutant in MUTANTS if mutant.family == family}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise GateError(
            f"mutant {unknown[0]!r}",
            got=f"no such mutant of the {family} family",
            expected=f"one of {sorted(known)}",
            fix="molmo2 mutants --help, and --config for another family",
        )
    return [known[name] for name in names] or list(known.values())


def run_mutants(
    plan: Plan, config: Path, target: str, mutants: Sequence[Mutant], workers: int, done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run them ``workers`` at a time, calling ``done`` as each ends; GateError without a bundle or its references."""
    needed = [plan.bundle_folder(target) / MANIFEST]
    needed += sorted({plan.reference_folder / f"specification-{mutant.case}.npz" for mutant in mutants})
    needed += [plan.module_path(target, program) for program in plan.tap_programs]
    missing = [path for path in needed if not path.exists()]
    if missing:
        raise GateError(str(missing[0]), got="no such file", expected="a build whose gates ran", fix="snakemake all")
    order = {
        "config": str(config.resolve()),
        "target": target,
        "bundle": str(plan.bundle_folder(target).resolve()),
        "taps": {program.name: str(plan.module_path(target, program).resolve()) for program in plan.tap_programs},
    }

    def one(mutant: Mutant) -> Outcome:
        reference = plan.reference_folder / f"specification-{mutant.case}.npz"
        own = order | {
            "stages": mutant.stages,
            "converted": mutant.converted,
            "case": mutant.case,
            "reference": str(reference.resolve()),
        }
        outcome = _run(mutant, own)
        done(outcome)
        return outcome

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, mutants))


def _run(mutant: Mutant, order: dict[str, object]) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="molmo2-mutant-") as folder:
        mutated_package(mutant, Path(folder))
        environment = os.environ | {"PYTHONPATH": folder}
        command = [sys.executable, "-m", CHILD]
        child = subprocess.run(
            command, input=json.dumps(order), capture_output=True, text=True, env=environment, check=False
        )
    if child.returncode:
        raise GateError(
            f"mutant {mutant.name!r}",
            got=next(
                (line for line in reversed(child.stderr.splitlines()) if "Error" in line), f"exit {child.returncode}"
            ),
            expected="a run of the gate: a crash is no rejection",
            fix="correct the catalogue's edit",
        )
    said = json.loads(child.stdout)
    return Outcome(mutant, said["first"], said["factor"], said["why"], time.monotonic() - began)


def mutated_package(mutant: Mutant, folder: Path) -> None:
    """A copy of this package in ``folder`` with the edit made; GateError if its text is not there exactly once."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / mutant.file
    source = path.read_text(encoding="utf-8")
    count = source.count(mutant.old)
    if count != 1:
        raise GateError(
            f"mutant {mutant.name!r}, {mutant.file}",
            got=f"its text {count} times",
            expected="once",
            fix="correct the catalogue",
        )
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
