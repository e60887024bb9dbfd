"""The manifest of a bundle: what the files are, and the fields by which a runtime decides whether it may use them."""

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from molmo2_iree.architecture import Frozen
from molmo2_iree.errors import BundleError

MANIFEST = "manifest.json"


class File(Frozen):
    """A file of the bundle; ``file`` is relative to the bundle's folder."""

    file: str
    size: int
    sha256: str


class Tensor(Frozen):
    """One parameter of an archive."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class Archive(File):
    """A parameter archive with a digest for each tensor."""

    tensors: dict[str, Tensor]


class Argument(Frozen):
    """One argument or result of a module."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Module(File):
    """A compiled stage at a bucket; its one function is ``main``."""

    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]


class Manifest(Frozen):
    """``compatibility`` is known while planning; everything below it only the build knows."""

    schema_version: Literal[1] = 1
    compatibility_digest: str
    compatibility: dict[str, Any]
    gates_on: str
    modules: dict[str, Module]
    archives: dict[str, Archive]
    files: dict[str, File]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle's folder; BundleError if it is absent, damaged, or of another schema."""
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BundleError(
            str(path),
            got=error.strerror,
            expected="a complete bundle (the manifest is written last)",
            fix="snakemake all, or pass --bundle FOLDER",
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BundleError(
            f"{path}, {field}",
            got=repr(first["input"])[:120],
            expected=first["msg"],
            fix="build the bundle again: snakemake all",
        ) from error
