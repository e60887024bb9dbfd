"""The plan: every path and digest of a build, from a configuration and its lock alone, without a checkpoint.

A path names everything its bytes depend on and nothing else; see ``docs/architecture.md``.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from molmo2_iree.build.flags import target_flags
from molmo2_iree.build.sources import (
    BUNDLING_SOURCE,
    CONVERTING_SOURCE,
    MEASURING_SOURCE,
    REFERENCE_SOURCE,
    REPORT_SOURCE,
    TRACED_SOURCE,
)
from molmo2_iree.config import Config, Target, Tolerance
from molmo2_iree.errors import BuildError, ConfigError
from molmo2_iree.identity import digest, file_sha256, flatten, source_digest
from molmo2_iree.lock import Lock, read_lock
from molmo2_iree.stages import STAGE_ABI, Program, programs, tap_programs

if TYPE_CHECKING:
    from molmo2_iree.model.programs import Model

ARTIFACTS = PurePosixPath("artifacts")
ARCHIVES = ("vision", "text")
WEIGHT_SUFFIX = ".safetensors"
PROCESSOR_FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "video_preprocessor_config.json",
)
"""Small files of a checkpoint that a bundle carries; the runtime reads them and nothing else of the checkpoint."""


@dataclass(frozen=True)
class Plan:
    """Paths are relative to the project's root."""

    config: Config
    lock: Lock

    # --- digests ---------------------------------------------------------------------------------------------------

    @cached_property
    def weights_digest(self) -> str:
        """12 hex: all of the lock but where its files come from, storage dtype and converting source."""
        return digest(
            {
                "architecture": self.lock.architecture.model_dump(mode="json"),
                "revision": self.lock.revision,
                "files": {name: file.model_dump() for name, file in self.lock.files.items()},
                "storage": self.config.weights.storage,
                "source": source_digest(CONVERTING_SOURCE),
            },
            12,
        )

    @cached_property
    def identity(self) -> str:
        """12 hex: everything a program's text depends on besides its own stage and bucket."""
        return digest(
            {
                "architecture": self.lock.architecture.model_dump(mode="json"),
                "weights": self.weights_digest,
                "cache": self.config.cache.model_dump(mode="json"),
                "abi": STAGE_ABI,
                "mask_policy": self.lock.mask_policy,
                "toolchain": self.config.toolchain.model_dump(),
                "source": source_digest(TRACED_SOURCE),
            },
            12,
        )

    def target(self, name: str) -> Target:
        """A target by name."""
        return self.config.known_targets[name]

    def target_tag(self, name: str) -> str:
        """``{target}-{digest8}``: the digest covers every flag and the compiler's version."""
        fields = {"flags": target_flags(self.target(name)), "iree": self.config.toolchain.iree}
        return f"{name}-{digest(fields, 8)}"

    def compatibility(self, target: str) -> dict[str, Any]:
        """Every field a runtime compares, flat; values are data only."""
        chosen = self.target(target)
        return flatten(
            {
                "abi": STAGE_ABI,
                "architecture": self.lock.architecture.model_dump(mode="json"),
                "buckets": self.config.buckets.model_dump(mode="json"),
                "bundling": source_digest(BUNDLING_SOURCE),
                "cache": self.config.cache.model_dump(mode="json"),
                "checkpoint": {"name": self.lock.name, "revision": self.lock.revision},
                "files": {name: self.lock.files[name].sha256 for name in self.processor_files},
                "identity": self.identity,
                "mask_policy": self.lock.mask_policy,
                "storage": self.config.weights.storage,
                "target": {"name": target, "triple": chosen.triple, "cpu": chosen.cpu, "flags": list(chosen.flags)},
                "toolchain": self.config.toolchain.model_dump(),
                "weights": self.weights_digest,
            }
        )

    def model(self) -> "Model":
        """What a traced program depends on besides its own name."""
        from molmo2_iree.model.programs import Model

        return Model(
            architecture=self.lock.architecture,
            cache=self.config.cache.layout(),
            storage=self.config.weights.storage,
            causal_image=self.lock.mask_policy == "causal",
        )

    # --- what is built ---------------------------------------------------------------------------------------------

    @cached_property
    def programs(self) -> list[Program]:
        """Production programs, in stage order."""
        return list(programs(self.config.buckets.model_dump()))

    @cached_property
    def tap_programs(self) -> list[Program]:
        """Diagnostic programs of targets whose gates run here."""
        return list(tap_programs(self.config.buckets.model_dump()))

    def program(self, name: str) -> Program:
        """A planned program by name."""
        planned = {program.name: program for program in (*self.programs, *self.tap_programs)}
        if name not in planned:
            raise ConfigError(
                "program", got=name, expected=f"one of {', '.join(planned)}", fix="add the bucket to the configuration"
            )
        return planned[name]

    @property
    def processor_files(self) -> list[str]:
        """The small files this checkpoint has."""
        return [name for name in PROCESSOR_FILES if name in self.lock.files]

    @property
    def gated_targets(self) -> list[str]:
        """Selected targets whose gates run on this kind of machine."""
        return [name for name in self.config.targets if self.target(name).gates_on == "cpu"]

    # --- paths -----------------------------------------------------------------------------------------------------

    @property
    def checkpoint_folder(self) -> Path:
        """The fetched files' folder."""
        return Path(ARTIFACTS / "checkpoints" / self.lock.folder)

    @property
    def weights_folder(self) -> Path:
        """The converted archives' folder."""
        return Path(ARTIFACTS / "weights" / self.weights_digest)

    @property
    def identity_folder(self) -> Path:
        """The programs' and targets' folder."""
        return Path(ARTIFACTS / self.identity)

    @property
    def module_cache(self) -> Path:
        """Compiled modules by content, shared by every identity."""
        return Path(ARTIFACTS / "cache" / "modules")

    def program_path(self, program: Program) -> Path:
        """A program's text."""
        return self.identity_folder / "programs" / f"{program.name}.mlir"

    def target_folder(self, target: str) -> Path:
        """Modules, records and bundle of one target."""
        return self.identity_folder / self.target_tag(target)

    def module_path(self, target: str, program: Program) -> Path:
        """A compiled module."""
        return self.target_folder(target) / f"{program.name}.vmfb"

    def bundle_folder(self, target: str) -> Path:
        """The bundle; its manifest's presence means it is complete."""
        return self.target_folder(target) / f"bundle-{digest(self.compatibility(target), 12)}"

    @property
    def reference_folder(self) -> Path:
        """Reference outputs: they depend on checkpoint, cases, the references' source and pins, on no build of ours."""
        fields = {
            "files": {name: file.model_dump() for name, file in self.lock.files.items()},
            "mask_policy": self.lock.mask_policy,
            "storage": self.config.weights.storage,
            "greedy_tokens": self.config.gates.greedy_tokens,
            "references": {name: pins.model_dump(mode="json") for name, pins in self.config.references.items()},
            "drawings": {path.name: file_sha256(path) for path in sorted(Path("examples").glob("*.png"))},
            "source": source_digest(REFERENCE_SOURCE),
        }
        return Path(ARTIFACTS / "references" / digest(fields, 12))

    def reference_path(self, gate: str) -> Path:
        """The reference outputs a gate compares with."""
        return self.reference_folder / f"{gate}.npz"

    def record_path(self, target: str, gate: str) -> Path:
        """A measured record: it belongs to one bundle, one measuring source and one set of references."""
        return self.bundle_records(target) / f"{gate}.json"

    def bundle_records(self, target: str) -> Path:
        """The folder of a bundle's records."""
        compat = self.bundle_folder(target).name.removeprefix("bundle-")
        measuring = digest([source_digest(MEASURING_SOURCE), str(self.reference_folder)], 8)
        return self.target_folder(target) / "records" / f"{compat}-{measuring}"

    def verdict_path(self, target: str, gate: str) -> Path:
        """A record's verdict: it belongs to one set of tolerances, those of the stored weights' dtype."""
        return self._verdicts(target) / f"{gate}.verdict.json"

    def _verdicts(self, target: str) -> Path:
        limits = {stage: allowed.model_dump(exclude={"reason"}) for stage, allowed in self.limits.items()}
        return self.bundle_records(target) / digest(limits, 8)

    def report_folder(self, target: str) -> Path:
        """The gate page and the JUnit file: they show the records of every gate, and the tolerances' reasons."""
        fields = {
            "gates": self.gates,
            "reasons": {stage: allowed.reason for stage, allowed in self.limits.items()},
            "source": source_digest(REPORT_SOURCE),
        }
        return self._verdicts(target) / f"report-{digest(fields, 8)}"

    def mutants_path(self, target: str) -> Path:
        """What became of the wrong models; it belongs to the same bundle and references as the records."""
        return self.bundle_records(target) / "mutants.json"

    @property
    def limits(self) -> dict[str, Tolerance]:
        """The tolerances of the stored weights' dtype."""
        return self.config.tolerances.get(self.config.weights.storage, {})

    @property
    def gates(self) -> list[str]:
        """``{reference}-{case}`` for every pair."""
        return [f"{reference}-{case}" for reference in self.config.gates.references for case in self.config.gates.cases]


def expect_planned(output: Path, *planned: Path) -> None:
    """Refuse to write an artifact under a path that is not the plan's own: its source was edited after planning.

    Anywhere else than among the artifacts, a verb called by hand may write.
    """
    if output.parts[:1] == (str(ARTIFACTS),) and output not in planned:
        raise BuildError(
            "this step's output",
            got=f"{output}, planned before an edit of the source or the configuration",
            expected=" or ".join(map(str, planned)),
            fix="run snakemake again",
        )


def make_plan(config: Config) -> Plan:
    """Read the lock and check sizes against the architecture; ConfigError names the bucket that cannot be."""
    lock = read_lock(Path(config.checkpoint))
    processor, text = lock.architecture.processor, lock.architecture.text
    most = processor.max_crops + 1
    crops = config.buckets.crops
    if crops[0] < 2 or crops[-1] != most:
        raise ConfigError(
            "buckets.crops",
            got=list(crops),
            expected=f"sizes from 2 up to exactly {most}, the most crops an image of this checkpoint has",
            fix=f"end the list with {most}",
        )
    if config.cache.context > text.max_positions:
        raise ConfigError(
            "cache.context",
            got=config.cache.context,
            expected=f"at most {text.max_positions} positions",
            fix="lower it",
        )
    return Plan(config, lock)
