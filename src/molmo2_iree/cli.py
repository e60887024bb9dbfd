"""The ``molmo2`` command. Each verb imports what it needs when it runs, so that asking a question loads no compiler."""

import os
import sys

import typer

from molmo2_iree.commands.ask import ask
from molmo2_iree.commands.build import bundle, compile_, convert, fetch, lock, trace
from molmo2_iree.commands.gate import judge, measure, reference
from molmo2_iree.commands.inspect import inspect
from molmo2_iree.commands.mutants import mutants
from molmo2_iree.errors import MolmoError

INTERRUPTED = 130

app = typer.Typer(
    help="Molmo2 as compiled modules: ask about pictures, look into bundles, and the steps of the build.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (ask, inspect, lock, fetch):
    app.command()(verb)
for verb, name in ((convert, "convert"), (trace, "trace"), (compile_, "compile"), (bundle, "bundle")):
    app.command(name, rich_help_panel="Steps of the build (snakemake runs them)")(verb)
for verb in (reference, measure, judge, mutants):
    app.command(rich_help_panel="Gates (snakemake runs them)")(verb)


def main() -> None:
    """Run the command line; a refusal is one message on standard error and the exit code of its class."""
    try:
        app()
    except MolmoError as error:
        sys.stderr.write(f"molmo2: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
