"""One mutant, in a process of its own whose package is the mutated copy: compile its stages, measure, judge.

Reads one JSON object from standard input and writes one to standard output; see ``mutate``.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from molmo2_iree.build.compile import compile_program
from molmo2_iree.build.convert import convert
from molmo2_iree.build.plan import Plan, make_plan
from molmo2_iree.build.trace import trace
from molmo2_iree.config import read_config
from molmo2_iree.errors import MolmoError
from molmo2_iree.manifest import Archive
from molmo2_iree.parity.cases import case_named
from molmo2_iree.parity.judge import judge
from molmo2_iree.parity.measure import measure
from molmo2_iree.parity.mutant import REFUSED
from molmo2_iree.parity.reference import read_reference
from molmo2_iree.runtime.bundle import open_bundle
from molmo2_iree.runtime.device import Device
from molmo2_iree.runtime.model import Model
from molmo2_iree.stages import Program


class MutatedModel(Model):
    """A model whose mutated stages are compiled from the mutated source when first called."""

    plan: Plan
    target: str
    stages: tuple[str, ...]
    scratch: Path

    def add_module(self, program: Program, path: Path) -> None:
        """The built module, or for a mutated stage a new one."""
        if program.stage in self.stages:
            text = self.scratch / f"{program.name}.mlir"
            text.write_text(trace(self.plan.model(), program), encoding="utf-8")
            path = self.scratch / f"{program.name}.vmfb"
            iree = self.plan.config.toolchain.iree
            compile_program(text, self.plan.target(self.target), path, self.plan.module_cache, iree)
        super().add_module(program, path)


def converted(plan: Plan, archives: dict[str, Archive], scratch: Path) -> dict[str, Archive]:
    """The archives as the mutated source writes them."""
    storage = plan.config.weights.storage
    written = convert(plan.checkpoint_folder, plan.lock.architecture, storage, scratch / "weights", lambda _: None)
    paths = {path.stem: path.resolve() for path in written}
    return {
        name: archive.model_copy(update={"file": str(paths[name]), "tensors": {}}) for name, archive in archives.items()
    }


def run(order: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """The first stage that fails and by what factor it misses its allowance; ``first`` is None for a survivor."""
    plan = make_plan(read_config(Path(order["config"])))
    bundle = open_bundle(Path(order["bundle"]))
    archives = bundle.manifest.archives
    model = MutatedModel(
        bundle, Device(bundle.folder, converted(plan, archives, scratch) if order["converted"] else archives)
    )
    model.plan, model.target, model.stages, model.scratch = plan, order["target"], tuple(order["stages"]), scratch
    for program in plan.tap_programs:
        model.add_module(program, Path(order["taps"][program.name]))
    wanted, _ = read_reference(Path(order["reference"]))
    taps = {program.stage: program for program in plan.tap_programs}
    try:
        comparisons = measure(model, taps, case_named(order["case"]), wanted)
    except MolmoError as refusal:
        return {"first": REFUSED, "factor": None, "why": str(refusal)}
    record = {"gate": f"specification-{order['case']}", "target": order["target"], "comparisons": comparisons}
    failed = [v for v in judge(record, plan.config.tolerances[plan.config.weights.storage]) if not v["passed"]]
    if not failed:
        return {"first": None, "factor": None, "why": "every stage passed"}
    first = failed[0]
    factor = max(first.get("margin", 0.0), first.get("rms_margin", 0.0)) or None
    return {"first": first["stage"], "factor": factor, "why": first["why"]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="molmo2-mutant-") as folder:
        sys.stdout.write(json.dumps(run(json.load(sys.stdin), Path(folder))))
