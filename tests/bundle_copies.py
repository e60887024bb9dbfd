"""Copies of the built bundle to damage, and honest edits of a manifest: every digest recomputed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from molmo2_iree.identity import digest, file_sha256
from molmo2_iree.manifest import MANIFEST, manifest_text
from molmo2_iree.runtime.bundle import STAMP


def copy_bundle(source: Path, folder: Path) -> Path:
    """A second bundle with its own files, never opened."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(STAMP))
    return folder


def files_of(folder: Path) -> list[str]:
    """Every file of a bundle by its path in it, the manifest first."""
    return sorted(
        (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != STAMP),
        key=lambda name: (name != MANIFEST, name),
    )


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as its writer would have: the digests fit what it says now."""
    fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    change(fields)
    fields["compatibility_digest"] = digest(fields["compatibility"])
    (folder / MANIFEST).write_text(manifest_text(fields), encoding="utf-8")


def set_field(folder: Path, field: str, value: object) -> None:
    """Give one compatibility field another value."""
    edit_manifest(folder, lambda fields: fields["compatibility"].update({field: value}))


def put_file(folder: Path, group: str, name: str, content: bytes) -> None:
    """Replace a file and let the manifest say so."""

    def change(fields: dict[str, Any]) -> None:
        entry = fields[group][name]
        path = folder / entry["file"]
        path.unlink()
        path.write_bytes(content)
        entry |= {"size": len(content), "sha256": file_sha256(path)}
        if group == "files":
            fields["compatibility"][f"files.{name}"] = entry["sha256"]

    edit_manifest(folder, change)


def flip(path: Path, place: int, mask: int) -> None:
    """Change one byte of a file, in place, by exclusive or."""
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(1)[0]
        file.seek(place)
        file.write(bytes([old ^ mask]))
