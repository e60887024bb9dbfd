"""The manifest of a bundle: what the files are, and the fields by which a runtime decides whether it may use them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from molmo2_iree.architecture import Frozen
from molmo2_iree.errors import BundleError
from molmo2_iree.identity import digest

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
    """``compatibility`` is known while planning; everything below it only the build knows.

    ``content_digest`` covers all other fields; :func:`manifest_text` fills it in.
    """

    schema_version: Literal[1] = 1
    content_digest: str = ""
    compatibility_digest: str
    compatibility: dict[str, Any]
    gates_on: str
    modules: dict[str, Module]
    archives: dict[str, Archive]
    files: dict[str, File]


def manifest_text(fields: Mapping[str, Any]) -> str:
    """The one form a manifest is written in, its content digest filled in: any other byte is damage."""
    digested = digest({name: value for name, value in fields.items() if name != "content_digest"})
    return json.dumps({**fields, "content_digest": digested}, indent=1, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle's folder; BundleError if it is absent, damaged, or of another schema."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        manifest = Manifest.model_validate_json(content)
        written = manifest_text(manifest.model_dump(mode="json"))
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
        raise _damaged(f"{path}, {field}", repr(first["input"])[:120], first["msg"]) from error
    except ValueError as error:
        raise _damaged(str(path), f"a value that no digest takes ({error})", "finite numbers") from error
    if content != written.encode():
        wanted = json.loads(written)["content_digest"]
        got = manifest.content_digest or "(absent)"
        raise _damaged(f"{path}, content_digest", got, f"{wanted}, and the bytes as the build wrote them")
    return manifest


def _damaged(where: str, got: str, expected: str) -> BundleError:
    return BundleError(where, got=got, expected=expected, fix="build the bundle again: snakemake all")
