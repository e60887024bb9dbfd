"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_CONFIG = Path("config/default.yaml")

ConfigFile = Annotated[Path, typer.Option("--config", help="Configuration file.", show_default=str(DEFAULT_CONFIG))]
TargetName = Annotated[str, typer.Option("--target", help="A target of the configuration.")]
Output = Annotated[Path, typer.Option("--output", help="File to write.")]
