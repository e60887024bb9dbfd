"""Open a bundle: everything is compared before any native code runs, and a mismatch is refused by its field's name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from molmo2_iree.architecture import Architecture
from molmo2_iree.config import Buckets, Cache
from molmo2_iree.detect import JSON_FILES, read_architecture
from molmo2_iree.errors import BundleError
from molmo2_iree.files import write_whole
from molmo2_iree.identity import digest, file_sha256, first_difference, flatten
from molmo2_iree.manifest import File, Manifest, read_manifest
from molmo2_iree.runtime.host import check_host
from molmo2_iree.stages import STAGE_ABI, Program, programs

REBUILD = "build the bundle again: snakemake all"
STAMP = ".verified.json"
VIDEO_FILE = "video_preprocessor_config.json"


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. Nothing is loaded yet."""

    folder: Path
    manifest: Manifest
    architecture: Architecture
    cache: Cache
    buckets: Buckets
    programs: dict[str, Program]

    @property
    def processor_folder(self) -> Path:
        """Tokenizer, template and configuration files."""
        return self.folder / "processor"


def open_bundle(folder: Path, expected: Mapping[str, Any] | None = None, *, verify_all: bool = False) -> Bundle:
    """Check a bundle's folder against itself, this runtime, this machine and, if given, ``expected`` fields.

    Modules and processor files are hashed every time. Archives are hashed when first seen or changed since
    (size, time or place), or with ``verify_all``. BundleError names the field or file.
    """
    manifest = read_manifest(folder)
    fields = manifest.compatibility
    if digest(fields) != manifest.compatibility_digest:
        raise BundleError(
            f"{folder}, compatibility_digest", got=manifest.compatibility_digest, expected=digest(fields), fix=REBUILD
        )
    try:
        ours: dict[str, Any] = {"abi": STAGE_ABI, "toolchain.iree": version("iree-base-runtime")}
        _compare(folder, {name: fields[name] for name in ours}, ours)
        check_host(fields["target.triple"], fields["target.cpu"])
        if expected is not None:
            _compare(folder, fields, expected)
        for name, file in manifest.files.items():
            check_file(folder, file, name)
        _compare(
            folder, {f"files.{name}": file.sha256 for name, file in manifest.files.items()}, _part(fields, "files.")
        )
        architecture = _architecture(folder, manifest)
        _compare(
            folder, flatten({"architecture": architecture.model_dump(mode="json")}), _part(fields, "architecture.")
        )
        cache = Cache.model_validate_json(json.dumps(_stripped(fields, "cache.")))
        buckets = Buckets.model_validate_json(json.dumps(_stripped(fields, "buckets.")))
    except (KeyError, ValueError) as error:
        raise BundleError(
            f"{folder}, compatibility", got=str(error)[:200], expected="every field of a bundle", fix=REBUILD
        ) from error
    built = {program.name: program for program in programs(buckets.model_dump())}
    if built.keys() != manifest.modules.keys():
        difference = sorted(built.keys() ^ manifest.modules.keys())
        raise BundleError(
            f"{folder}, modules",
            got=f"{difference} on one side only",
            expected="one module for every bucket",
            fix=REBUILD,
        )
    for name, module in manifest.modules.items():
        check_file(folder, module, name)
    _check_archives(folder, manifest, verify_all)
    return Bundle(folder, manifest, architecture, cache, buckets, built)


def check_file(folder: Path, file: File, name: str) -> None:
    """Refuse a file of another size or content."""
    path = folder / file.file
    size = path.stat().st_size if path.is_file() else None
    if size != file.size:
        raise BundleError(
            f"{path} ({name})",
            got="no such file" if size is None else f"{size} bytes",
            expected=f"{file.size} bytes",
            fix=REBUILD,
        )
    found = file_sha256(path)
    if found != file.sha256:
        raise BundleError(
            f"{path} ({name})",
            got=f"sha256 {found}",
            expected=f"sha256 {file.sha256}",
            fix=f"{REBUILD}, after deleting the damaged file",
        )


def _compare(folder: Path, got: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    difference = first_difference(got, expected)
    if difference is not None:
        field, found, wanted = difference
        raise BundleError(f"{folder}, field {field}", got=found, expected=wanted, fix=REBUILD)


def _part(fields: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name.startswith(prefix)}


def _stripped(fields: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in _part(fields, prefix).items()}


def _architecture(folder: Path, manifest: Manifest) -> Architecture:
    names = [*JSON_FILES, *([VIDEO_FILE] if VIDEO_FILE in manifest.files else [])]
    return read_architecture({name: json.loads((folder / manifest.files[name].file).read_bytes()) for name in names})


def _check_archives(folder: Path, manifest: Manifest, verify_all: bool) -> None:
    stamp_path = folder / STAMP
    now: dict[str, list[Any]] = {}
    for name, archive in manifest.archives.items():
        path = folder / archive.file
        if not path.is_file() or path.stat().st_size != archive.size:
            check_file(folder, archive, name)
        state = path.stat()
        now[name] = [archive.sha256, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    if not verify_all and _read_stamp(stamp_path) == now:
        return
    for name, archive in manifest.archives.items():
        check_file(folder, archive, f"weights archive {name}")
    try:
        write_whole(stamp_path, json.dumps(now))
    except OSError:
        return  # a read-only bundle is hashed every time


def _read_stamp(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
