"""A lock: one checkpoint revision, every needed file's size and sha256, and the architecture read from it.

Stored as YAML in ``config/locks``; a ``null`` size or sha256 is a figure nobody has confirmed, and fetching refuses it.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from molmo2_iree.architecture import Architecture, Frozen
from molmo2_iree.errors import CheckpointError
from molmo2_iree.files import write_whole

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

MaskPolicy = Literal["bidirectional", "causal"]


class LockedFile(Frozen):
    """Size in bytes and sha256 of one file; ``None`` where no figure is confirmed."""

    size: Annotated[int, Field(ge=0)] | None
    sha256: Sha256 | None


class HubSource(Frozen):
    """A repository on a hub."""

    kind: Literal["hub"] = "hub"
    repository: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    endpoint: str | None = None


class DirectorySource(Frozen):
    """A directory with a checkpoint in the original format."""

    kind: Literal["directory"] = "directory"
    path: str


class EmbeddedSource(Frozen):
    """A miniature this project generates from a seed, of the 4B's kind or of the O-7B's."""

    kind: Literal["embedded"] = "embedded"
    seed: int
    variant: Literal["default", "olmo"] = "default"


class Lock(Frozen):
    """See the module. ``mask_policy`` states whether the image part sees itself in both directions: no file says it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    source: Annotated[HubSource | DirectorySource | EmbeddedSource, Field(discriminator="kind")]
    revision: str
    mask_policy: MaskPolicy
    files: dict[str, LockedFile]
    architecture: Architecture

    @field_validator("revision")
    @classmethod
    def _is_commit(cls, revision: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise ValueError("a 40-digit lower-case hexadecimal commit; a branch or tag name can move and is no pin")
        return revision

    @field_validator("files")
    @classmethod
    def _are_plain(cls, files: dict[str, LockedFile]) -> dict[str, LockedFile]:
        for name in files:
            if not re.fullmatch(r"[\w][\w.-]*", name):
                raise ValueError(f"file {name!r} must be a plain name inside the repository's root")
        return files

    @property
    def folder(self) -> str:
        """Name of the checkpoint's folder among the artifacts."""
        return f"{self.name}@{self.revision}"


def read_lock(path: Path) -> Lock:
    """Read and validate a lock file; CheckpointError names the file and the field."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            str(path),
            got=error.strerror or str(error),
            expected="a lock file",
            fix="write one: molmo2 lock REPOSITORY --revision COMMIT",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(
            str(path), got=f"no YAML ({error})", expected="a lock file", fix="write it again with molmo2 lock"
        ) from error
    try:
        return Lock.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CheckpointError(
            f"{path}, {field}",
            got=repr(first["input"])[:120],
            expected=first["msg"],
            fix="write it again with molmo2 lock",
        ) from error


def write_lock(lock: Lock, path: Path) -> None:
    """Write the lock as YAML by rename."""
    text = yaml.safe_dump(lock.model_dump(mode="json"), sort_keys=False, width=120)
    write_whole(path, text)


def content_revision(files: dict[str, LockedFile]) -> str:
    """A 40-hex revision for a source without commits: from every file's name, size and sha256."""
    lines = "".join(f"{name} {file.size} {file.sha256}\n" for name, file in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:40]
