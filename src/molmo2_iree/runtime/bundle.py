"""Open a bundle: everything is compared before any native code runs, and a mismatch is refused by its field's name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from molmo2_iree.architecture import Architecture
from molmo2_iree.config import Buckets, Cache
from molmo2_iree.detect import JSON_FILES, VIDEO_FILE, read_architecture
from molmo2_iree.errors import BundleError
from molmo2_iree.files import write_whole
from molmo2_iree.identity import digest, file_sha256, first_difference, flatten
from molmo2_iree.manifest import Argument, File, Manifest, read_manifest
from molmo2_iree.runtime.host import check_host
from molmo2_iree.stages import STAGE_ABI, STAGES, Program, programs, signature

REBUILD = "build the bundle again: snakemake all"
STAMP = ".verified.json"
ABSENT = "(absent)"

_Section = TypeVar("_Section", Cache, Buckets)


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


def open_bundle(folder: Path | str, expected: Mapping[str, Any] | None = None, *, verify_all: bool = False) -> Bundle:
    """Check a bundle's folder against itself, this runtime, this machine and, if given, ``expected`` fields.

    Modules and processor files are hashed every time. Archives are hashed when first seen or changed since
    (size, time or place), or with ``verify_all``. BundleError names the field or file.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    fields = manifest.compatibility
    if digest(fields) != manifest.compatibility_digest:
        raise BundleError(
            f"{folder}, compatibility_digest", got=manifest.compatibility_digest, expected=digest(fields), fix=REBUILD
        )
    ours = {"abi": STAGE_ABI, "toolchain.iree": version("iree-base-runtime")}
    _compare(folder, {name: fields.get(name, ABSENT) for name in ours}, ours)
    _check_target(folder, fields)
    if expected is not None:
        _compare(folder, fields, expected)
    for name, file in manifest.files.items():
        check_file(folder, file, name)
    bundle = _described(folder, manifest)
    _check_modules(bundle)
    _check_archives(bundle, verify_all)
    return bundle


def check_file(folder: Path, file: File, name: str) -> None:
    """Refuse a file of another size or content."""
    path = folder / file.file
    where = f"{path} ({name})"
    try:
        size = path.stat().st_size if path.is_file() else None
        found = file_sha256(path) if size == file.size else None
    except OSError as error:
        raise BundleError(
            where, got=error.strerror, expected="a readable file", fix="check the permissions of the bundle"
        ) from error
    if found is None:
        got = "no such file" if size is None else f"{size} bytes"
        raise BundleError(where, got=got, expected=f"{file.size} bytes", fix=REBUILD)
    if found != file.sha256:
        raise BundleError(
            where,
            got=f"sha256 {found}",
            expected=f"sha256 {file.sha256}",
            fix=f"{REBUILD}, after deleting the damaged file",
        )


def _compare(folder: Path, got: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = "") -> None:
    difference = first_difference(got, expected)
    if difference is not None:
        field, found, wanted = difference
        raise BundleError(f"{folder}, compatibility field {prefix}{field}", got=found, expected=wanted, fix=REBUILD)


def _check_target(folder: Path, fields: Mapping[str, Any]) -> None:
    triple, cpu, flags = (fields.get(f"target.{name}") for name in ("triple", "cpu", "flags"))
    if not isinstance(triple, str) or not isinstance(cpu, str) or not isinstance(flags, list):
        raise BundleError(
            f"{folder}, compatibility fields target.*",
            got=f"triple {triple!r}, cpu {cpu!r}, flags {flags!r}"[:200],
            expected="two names and a list",
            fix=REBUILD,
        )
    check_host(triple, cpu, [str(flag) for flag in flags])


def _described(folder: Path, manifest: Manifest) -> Bundle:
    """What the checked processor files and the fields say, held against each other."""
    fields = manifest.compatibility
    _compare(folder, _part(fields, "files."), {f"files.{name}": file.sha256 for name, file in manifest.files.items()})
    architecture = read_architecture(_read_files(folder, manifest))
    _compare(folder, _part(fields, "architecture."), flatten({"architecture": architecture.model_dump(mode="json")}))
    cache, buckets = _section(folder, Cache, fields, "cache."), _section(folder, Buckets, fields, "buckets.")
    built = {program.name: program for program in programs(buckets.model_dump())}
    return Bundle(folder, manifest, architecture, cache, buckets, built)


def _read_files(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """The parsed files an architecture is read from, by name."""
    files: dict[str, Any] = {}
    for name in JSON_FILES + ((VIDEO_FILE,) if VIDEO_FILE in manifest.files else ()):
        if name not in manifest.files:
            raise BundleError(f"{folder}, files", got=f"no {name}", expected="the files a model has", fix=REBUILD)
        path = folder / manifest.files[name].file
        try:
            files[name] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise BundleError(str(path), got=str(error), expected="a JSON file", fix=REBUILD) from error
    return files


def _section(folder: Path, kind: type[_Section], fields: Mapping[str, Any], prefix: str) -> _Section:
    """A part of the configuration from its fields."""
    stripped = {name.removeprefix(prefix): value for name, value in _part(fields, prefix).items()}
    try:
        section = kind.model_validate_json(json.dumps(stripped))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([prefix.rstrip("."), *(str(part) for part in first["loc"])])
        raise BundleError(
            f"{folder}, compatibility field {field}",
            got=ABSENT if first["type"] == "missing" else repr(first["input"])[:120],
            expected=first["msg"],
            fix=REBUILD,
        ) from error
    _compare(folder, stripped, section.model_dump(mode="json"), prefix)
    return section


def _part(fields: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name.startswith(prefix)}


def _check_modules(bundle: Bundle) -> None:
    """One module a bucket, of this runtime's signature, each file as built."""
    folder, modules = bundle.folder, bundle.manifest.modules
    if bundle.programs.keys() != modules.keys():
        raise BundleError(
            f"{folder}, modules and compatibility fields buckets.*",
            got=f"{sorted(bundle.programs.keys() ^ modules.keys())} on one side only",
            expected="one module for every bucket",
            fix=REBUILD,
        )
    for name, program in bundle.programs.items():
        sides = signature(program, bundle.architecture, bundle.cache.layout())
        ours = [Argument(name=n, shape=s, dtype=d) for side in sides for n, s, d in side]
        theirs = [*modules[name].arguments, *modules[name].results]
        if ours != theirs:
            got, expected = next(
                (pair for pair in zip(theirs, ours, strict=False) if pair[0] != pair[1]), (len(theirs), len(ours))
            )
            raise BundleError(
                f"{folder}, signature of module {name} (buckets.*, cache.*)", got=got, expected=expected, fix=REBUILD
            )
        check_file(folder, modules[name], name)


def _check_archives(bundle: Bundle, verify_all: bool) -> None:
    folder, archives = bundle.folder, bundle.manifest.archives
    _check_storage(bundle)
    now: dict[str, list[Any]] = {}
    for name, archive in archives.items():
        path = folder / archive.file
        if not path.is_file() or path.stat().st_size != archive.size:
            check_file(folder, archive, f"weights archive {name}")
        state = path.stat()
        now[name] = [archive.sha256, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    if not verify_all and _read_stamp(folder / STAMP) == now:
        return
    for name, archive in archives.items():
        check_file(folder, archive, f"weights archive {name}")
    try:
        write_whole(folder / STAMP, json.dumps(now))
    except OSError:
        return  # a read-only bundle is hashed every time


def _check_storage(bundle: Bundle) -> None:
    """Every archive the stages read is listed, its matrices stored as the fields say and all else as float32."""
    archives = bundle.manifest.archives
    needed = {STAGES[program.stage].archive for program in bundle.programs.values()}
    if needed != archives.keys():
        raise BundleError(f"{bundle.folder}, archives", got=sorted(archives), expected=sorted(needed), fix=REBUILD)
    storage = bundle.manifest.compatibility.get("storage", ABSENT)
    found = {tensor.dtype for archive in archives.values() for tensor in archive.tensors.values()} | {"float32"}
    if sorted(found) != sorted({str(storage), "float32"}):
        raise BundleError(
            f"{bundle.folder}, compatibility field storage",
            got=storage,
            expected=f"the archives' {' and '.join(sorted(found))}",
            fix=REBUILD,
        )


def _read_stamp(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
