"""``molmo2 mutants``: run the catalogue of wrong models and show where each is caught."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from molmo2_iree.commands.build import read_plan
from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile
from molmo2_iree.errors import GateError
from molmo2_iree.files import write_whole

if TYPE_CHECKING:
    from molmo2_iree.parity.mutate import Outcome


def mutants(
    name: Annotated[list[str] | None, typer.Argument(help="Only these mutants.", show_default="all")] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    target: Annotated[str, typer.Option("--target", help="A target whose gates run here.")] = "cpu",
    workers: Annotated[int, typer.Option(min=1, help="Mutants at a time.")] = 2,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the outcomes.", show_default="where molmo2 report looks, if all of them run"),
    ] = None,
) -> None:
    """Compile wrong models and hold each against the gates; fails if one survives or is caught at another stage.

    The catalogue has a family of mistakes for each kind of checkpoint: those of the configuration's kind are run.

    Example: molmo2 mutants "exact GELU" "causal prefill mask"
    """
    from rich.console import Console
    from rich.table import Table

    from molmo2_iree.parity.mutate import chosen, family_of, run_mutants

    plan = read_plan(config)
    picked = chosen(name or [], family_of(plan))
    done: list[Outcome] = []

    def progress(outcome: "Outcome") -> None:
        done.append(outcome)
        sys.stderr.write(f"{len(done)}/{len(picked)} {outcome.mutant.name}: {outcome.caught or 'SURVIVED'}\n")

    outcomes = run_mutants(plan, config, target, picked, workers, progress)
    if path := output or (None if name else plan.mutants_path(target)):
        write_whole(path, outcomes_json(target, outcomes))
        sys.stderr.write(f"wrote {path}\n")
    table = Table("mutant", "caught at", "by what factor", "seconds")
    for outcome in outcomes:
        caught = outcome.caught or "SURVIVED"
        if not outcome.as_named:
            caught += f" (named: {outcome.mutant.first})"
        factor = "exact" if outcome.factor is None else f"{outcome.factor:.3g}"
        table.add_row(outcome.mutant.name, caught, factor, f"{outcome.seconds:.1f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    wrong = [outcome for outcome in outcomes if not outcome.as_named]
    if wrong:
        raise GateError(
            f"mutant {wrong[0].mutant.name!r}",
            got=wrong[0].caught or "it survived",
            expected=f"rejection at {wrong[0].mutant.first}",
            fix="find out why the gates do not see it there; never weaken the catalogue",
        )


def outcomes_json(target: str, outcomes: "Sequence[Outcome]") -> str:
    """The outcomes as the gate page reads them, in the order of the catalogue."""
    found = [
        {
            "name": outcome.mutant.name,
            "case": outcome.mutant.case,
            "first": outcome.mutant.first,
            "caught": outcome.caught,
            "factor": outcome.factor,
            "why": outcome.why,
            "seconds": round(outcome.seconds, 1),
        }
        for outcome in outcomes
    ]
    return json.dumps({"target": target, "outcomes": found}, indent=1) + "\n"
