"""The ``molmo2`` command. Each verb imports what it needs when it runs, so that asking a question loads no compiler."""

import os
import sys
from typing import TYPE_CHECKING

from molmo2_iree.errors import MolmoError
from molmo2_iree.runtime.interrupt import uninterrupted

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130


def application() -> "typer.Typer":
    """The verbs."""
    import typer

    from molmo2_iree.commands.answer import answer
    from molmo2_iree.commands.ask import ask
    from molmo2_iree.commands.build import bundle, compile_, convert, fetch, lock, trace
    from molmo2_iree.commands.chat import chat
    from molmo2_iree.commands.gate import judge, measure, reference
    from molmo2_iree.commands.inspect import inspect
    from molmo2_iree.commands.mutants import mutants
    from molmo2_iree.commands.report import report

    app = typer.Typer(
        help="Molmo2 as compiled modules: ask about pictures, look into bundles, and the steps of the build.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for verb in (ask, answer, chat, inspect, lock, fetch):
        app.command()(verb)
    for verb, name in ((convert, "convert"), (trace, "trace"), (compile_, "compile"), (bundle, "bundle")):
        app.command(name, rich_help_panel="Steps of the build (snakemake runs them)")(verb)
    for verb in (reference, measure, judge, report, mutants):
        app.command(rich_help_panel="Gates (snakemake runs them)")(verb)
    return app


def main() -> None:
    """Run the command line; a refusal is one message on standard error and the exit code of its class."""
    try:
        with uninterrupted():  # an extension whose import is cut short fails in other words
            app = application()
        app()
    except MolmoError as error:
        sys.stderr.write(f"molmo2: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        sys.stderr.write(f"molmo2: {error}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to write has no place to go
        sys.exit(1)
