"""What the Snakefile needs: file lists and the arguments of each verb, all from the plan. Imports nothing heavy."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from molmo2_iree.build.plan import ARCHIVES, ARTIFACTS, Plan, make_plan
from molmo2_iree.config import validate, write_resolved
from molmo2_iree.errors import MolmoError
from molmo2_iree.identity import digest
from molmo2_iree.manifest import MANIFEST
from molmo2_iree.stages import Program


class Workflow:
    """The files of a plan as strings, in the forms rules ask for."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        resolved = plan.config.model_dump(mode="json")
        self.config = str(write_resolved(plan.config, Path(ARTIFACTS / "configs"), digest(resolved, 12)))
        self.targets = list(plan.config.targets)
        self.tags = {plan.target_tag(name): name for name in self.targets}
        self.tag_pattern = "|".join(re.escape(tag) for tag in self.tags)
        self.identity_folder = str(plan.identity_folder)
        self.weights_folder = str(plan.weights_folder)
        self.checkpoint_folder = str(plan.checkpoint_folder)
        self.references_folder = str(plan.reference_folder)
        self.embedded = plan.lock.source.kind == "embedded"

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

    def programs(self) -> list[str]:
        """Every program that some selected target needs."""
        chosen = [*self.plan.programs, *(self.plan.tap_programs if self.plan.gated_targets else [])]
        return [str(self.plan.program_path(program)) for program in chosen]

    def modules(self, tag: str) -> list[str]:
        """The production modules of a target."""
        return self._modules(tag, self.plan.programs)

    def tap_modules(self, tag: str) -> list[str]:
        """The diagnostic modules of a target."""
        return self._modules(tag, self.plan.tap_programs)

    def bundle_folder(self, tag: str) -> str:
        """A target's bundle."""
        return str(self.plan.bundle_folder(self.tags[tag]))

    def manifest(self, tag: str) -> str:
        """A target's manifest."""
        return f"{self.bundle_folder(tag)}/{MANIFEST}"

    def bundles(self, target: str | None = None) -> list[str]:
        """Manifests of one or every selected target."""
        return [self.manifest(tag) for tag in self._chosen(target)]

    def records(self, tag: str) -> str:
        """The folder of a target's records."""
        return str(self.plan.bundle_records(self.tags[tag]))

    def verdicts(self, target: str | None = None) -> list[str]:
        """Verdicts of every gate of one or every selected target whose gates run here."""
        gated = [tag for tag in self._chosen(target) if self.tags[tag] in self.plan.gated_targets]
        return [f"{self.records(tag)}/{gate}.verdict.json" for tag in gated for gate in self.plan.gates]

    def reference(self, gate: str) -> str:
        """The reference outputs a gate compares with."""
        return f"{self.references_folder}/{gate}.npz"

    def tolerances(self) -> str:
        """A digest that changes when a verdict may."""
        return digest(
            {k: {n: t.model_dump() for n, t in v.items()} for k, v in self.plan.config.tolerances.items()}, 12
        )

    def _modules(self, tag: str, programs: Iterable[Program]) -> list[str]:
        return [str(self.plan.module_path(self.tags[tag], program)) for program in programs]

    def _chosen(self, target: str | None) -> list[str]:
        return [tag for tag, name in self.tags.items() if target in (None, name)]


def open_workflow(config: dict[str, Any]) -> Workflow:
    """Validate the merged configuration of a Snakemake run; a refusal stops the run in one message."""
    try:
        return Workflow(make_plan(validate(dict(config), "configuration")))
    except MolmoError as error:
        raise WorkflowError(str(error)) from error
