"""What the Snakefile needs: file lists and the arguments of each verb, all from the plan. Imports nothing heavy."""

import fcntl
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from snakemake.exceptions import WorkflowError

from molmo2_iree.build.plan import ARCHIVES, ARTIFACTS, Plan, make_plan
from molmo2_iree.config import validate, write_resolved
from molmo2_iree.errors import BuildError, MolmoError
from molmo2_iree.identity import digest
from molmo2_iree.manifest import MANIFEST
from molmo2_iree.stages import Program

REPORT_FILES = ("gates.html", "gates.xml", "divergence.txt")
DIVERGENCE_FILE = REPORT_FILES[2]
RUNNING = Path(ARTIFACTS / ".running")


class Workflow:
    """The files of a plan as strings, in the forms rules ask for. A target's tag is ``{target}-{digest}``."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        resolved = plan.config.model_dump(mode="json")
        self.config = str(write_resolved(plan.config, Path(ARTIFACTS / "configs"), digest(resolved, 12)))
        self.targets = list(plan.config.targets)
        self.gated_targets = plan.gated_targets
        self.tags = {plan.target_tag(name): name for name in self.targets}
        self.tag_pattern = "|".join(re.escape(tag) for tag in self.tags)
        self.identity_folder = str(plan.identity_folder)
        self.weights_folder = str(plan.weights_folder)
        self.checkpoint_folder = str(plan.checkpoint_folder)
        self.references_folder = str(plan.reference_folder)
        self.references = list(plan.config.gates.references)
        self.embedded = plan.lock.source.kind == "embedded"
        self._running: TextIO | None = None

    def start(self) -> None:
        """Refuse to build while another run builds here. The lock ends with the process, however it ends."""
        try:
            self._running = hold(RUNNING)
        except MolmoError as error:
            raise WorkflowError(str(error)) from error

    def memory(self, base: int, checkpoints: float = 0) -> int:
        """MB a job needs: a base, and so many times the checkpoint's size."""
        size = sum(file.size or 0 for file in self.plan.lock.files.values())
        return base + int(checkpoints * size / 10**6)

    def checkpoint(self) -> list[str]:
        """Every locked file."""
        return [str(self.plan.checkpoint_folder / name) for name in self.plan.lock.files]

    def processor_files(self) -> list[str]:
        """The locked files a bundle carries."""
        return [str(self.plan.checkpoint_folder / name) for name in self.plan.processor_files]

    def archives(self) -> list[str]:
        """Converted archives and their index."""
        names = [*(f"{name}.irpa" for name in ARCHIVES), "weights.json"]
        return [str(self.plan.weights_folder / name) for name in names]

    def weights_index(self) -> str:
        """The index of the converted archives, written after them."""
        return self.archives()[-1]

    def programs(self) -> list[str]:
        """Every program that some selected target needs."""
        chosen = [*self.plan.programs, *(self.plan.tap_programs if self.gated_targets else [])]
        return [str(self.plan.program_path(program)) for program in chosen]

    def modules(self, target: str) -> list[str]:
        """The production modules of a target."""
        return self._modules(target, self.plan.programs)

    def tap_modules(self, target: str) -> list[str]:
        """The diagnostic modules of a target."""
        return self._modules(target, self.plan.tap_programs)

    def bundle(self, target: str) -> list[str]:
        """Every file of a target's bundle, the manifest last."""
        names = [
            *(f"modules/{program.name}.vmfb" for program in self.plan.programs),
            *(f"weights/{name}.irpa" for name in ARCHIVES),
            *(f"processor/{name}" for name in self.plan.processor_files),
            MANIFEST,
        ]
        return [str(self.plan.bundle_folder(target) / name) for name in names]

    def manifest(self, target: str) -> str:
        """A target's manifest, written after everything else of the bundle."""
        return self.bundle(target)[-1]

    def bundles(self) -> list[str]:
        """Every file of every selected target's bundle."""
        return [file for target in self.targets for file in self.bundle(target)]

    def logs(self, target: str) -> str:
        """The folder of a target's logs."""
        return f"{self.identity_folder}/logs/{self.plan.target_tag(target)}"

    def records(self, target: str) -> str:
        """The folder of a target's records."""
        return str(self.plan.bundle_records(target))

    def reference_files(self, reference: str) -> list[str]:
        """A reference's outputs for every case."""
        return [str(self.plan.reference_path(f"{reference}-{case}")) for case in self.plan.config.gates.cases]

    def verdict(self, target: str, gate: str) -> str:
        """A gate's verdict."""
        return str(self.plan.verdict_path(target, gate))

    def verdicts(self, target: str) -> list[str]:
        """Verdicts of every gate of a target; none where its gates do not run here."""
        return [self.verdict(target, gate) for gate in self.plan.gates if target in self.gated_targets]

    def all_verdicts(self) -> list[str]:
        """Verdicts of every gate of every selected target whose gates run here."""
        return [file for target in self.targets for file in self.verdicts(target)]

    def target_records(self, target: str) -> list[str]:
        """Records of every gate of a target."""
        return [str(self.plan.record_path(target, gate)) for gate in self.plan.gates]

    def report_folder(self, target: str) -> str:
        """The folder of a target's gate page."""
        return str(self.plan.report_folder(target))

    def report(self, target: str) -> list[str]:
        """The gate page and the JUnit file of a target; none where its gates do not run here."""
        return [f"{self.report_folder(target)}/{name}" for name in REPORT_FILES if target in self.gated_targets]

    def reported(self, target: str) -> str:
        """An empty file that judges wait for, so that a gate that fails leaves its page."""
        return f"{self.records(target)}/reported"

    def all_reports(self) -> list[str]:
        """Pages and JUnit files of every selected target whose gates run here."""
        return [file for target in self.targets for file in self.report(target)]

    def show_divergence(self) -> None:
        """After a run that failed: the first divergence of each target that has one, as its report words it."""
        for target in self.gated_targets:
            path = self.plan.report_folder(target) / DIVERGENCE_FILE
            if path.is_file():
                sys.stderr.write(path.read_text(encoding="utf-8"))

    def _modules(self, target: str, programs: Iterable[Program]) -> list[str]:
        return [str(self.plan.module_path(target, program)) for program in programs]


def hold(path: Path) -> TextIO:
    """Take the lock of a run and keep it as long as the returned file is open; BuildError if a live run holds it.

    Snakemake's own lock is a file that outlives a killed run, and is switched off in the default profile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise BuildError(
            str(path),
            got="another snakemake building in this folder",
            expected="one at a time",
            fix="wait until it is done, then run snakemake again",
        ) from error
    return file


def open_workflow(config: dict[str, Any]) -> Workflow:
    """Validate the merged configuration of a Snakemake run; a refusal stops the run in one message."""
    try:
        return Workflow(make_plan(validate(dict(config), "configuration")))
    except MolmoError as error:
        raise WorkflowError(str(error)) from error
