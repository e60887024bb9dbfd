"""``molmo2 report``: what the gates of a target found, as a page, as JUnit XML, and as a table here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from molmo2_iree.commands.build import read_plan
from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile


def report(
    config: ConfigFile = DEFAULT_CONFIG,
    target: Annotated[str, typer.Option("--target", help="A target whose gates run here.")] = "cpu",
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder to write to.", show_default="the target's own")
    ] = None,
) -> None:
    """Show what the gates found, failures and missing records included: gates.html, gates.xml, and a table.

    Never fails on what a gate found: snakemake gates does that.
    """
    from molmo2_iree.build.plan import expect_planned
    from molmo2_iree.commands.show import table
    from molmo2_iree.errors import ConfigError
    from molmo2_iree.parity.report import PAGE, divergence, write_report
    from molmo2_iree.parity.report_tables import HEADS, rows

    plan = read_plan(config)
    if target not in plan.gated_targets:
        known = ", ".join(plan.gated_targets) or "none"
        raise ConfigError(
            "--target",
            got=target,
            expected=f"a selected target whose gates run here: {known}",
            fix="name one of these, or add it to targets",
        )
    folder = output or plan.report_folder(target)
    expect_planned(folder, plan.report_folder(target))
    gathered = write_report(plan, target, folder)
    table(f"Gates of {target}", HEADS, [tuple(cell[:90] for cell in row) for row in rows(gathered.gates)])
    sys.stdout.write(divergence(gathered.bad[:1]))
    sys.stdout.write(f"page: {folder / PAGE}\n")
