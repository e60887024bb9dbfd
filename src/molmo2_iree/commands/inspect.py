"""``molmo2 inspect``: what a checkpoint directory or a bundle is, in words."""

from pathlib import Path
from typing import Annotated

import typer


def inspect(path: Annotated[Path, typer.Argument(help="A checkpoint directory or a bundle.")]) -> None:
    """Say what a checkpoint directory or a bundle is, in words, with sizes."""
    raise typer.BadParameter(str(path))
