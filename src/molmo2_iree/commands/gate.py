"""Verbs of the gates: thin fronts of ``molmo2_iree.parity``; snakemake calls them with a resolved configuration."""

from pathlib import Path
from typing import Annotated

import typer

from molmo2_iree.commands.build import read_plan, say
from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile, Output, TargetName

Gate = Annotated[str, typer.Argument(help="{reference}-{case}, such as native-photo.")]


def reference(
    name: Annotated[str, typer.Argument(help="A reference of gates.references, such as native.")],
    output: Annotated[Path, typer.Option(help="Folder to write {reference}-{case}.npz into.")],
    case: Annotated[list[str] | None, typer.Option(help="Only these cases.", show_default="gates.cases")] = None,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Compute what a reference says about every case, a file each."""
    from molmo2_iree.build.plan import expect_planned
    from molmo2_iree.parity.reference import reference_named, write_references

    plan, reference = read_plan(config), reference_named(name)
    expect_planned(output, plan.reference_folder)
    write_references(plan, reference, case or plan.config.gates.cases, output, lambda path: say(f"wrote {path}"))


def measure(
    gate: Gate,
    target: TargetName,
    reference: Annotated[Path, typer.Option(help="The reference's outputs.")],
    output: Output,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Run the modules on a case and record their differences from a reference; never fails on a number."""
    from molmo2_iree.build.plan import expect_planned
    from molmo2_iree.parity.measure import write_record

    plan = read_plan(config)
    expect_planned(output, plan.record_path(target, gate))
    record = write_record(plan, target, gate, reference, output)
    say(f"measured {gate} on {target}: {len(record['comparisons'])} comparisons")


def judge(
    record: Annotated[Path, typer.Argument(help="A measured record.")],
    output: Output,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Hold a record against the tolerances; fails at the first divergent stage and names it."""
    from molmo2_iree.build.plan import expect_planned
    from molmo2_iree.parity.expected import expected_environment
    from molmo2_iree.parity.judge import write_verdict

    plan = read_plan(config)
    expect_planned(output, *(plan.verdict_path(target, record.stem) for target in plan.config.targets))
    limits = plan.config.tolerances[plan.config.weights.storage]
    say(write_verdict(record, output, limits, lambda reference: expected_environment(plan, reference)))
