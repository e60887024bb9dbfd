"""Digests of data: canonical JSON, source files, and the fields a bundle is compared by."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


def canonical(value: object) -> str:
    """JSON with sorted keys, no spaces, and every float as its shortest exact decimal in a string.

    {"b": 1, "a": 0.5} is {"a":"0.5","b":1}. ValueError for NaN and infinities.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _plain(value: object) -> object:
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("a digest takes finite numbers only")
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def digest(value: object, length: int = 64) -> str:
    """The first ``length`` hex digits of sha256 over :func:`canonical`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def source_digest(names: Iterable[str]) -> str:
    """sha256 over the named source files of this package, by name and content; a folder stands for all .py files below.

    Whatever is there counts, committed or not: an import would run it, so leaving it out could keep a stale artifact.
    """
    total = hashlib.sha256()
    for name in sorted(names):
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            total.update(f"{file.relative_to(PACKAGE).as_posix()}\0".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted fields; lists are single values: {"a": {"b": [1]}} is {"a.b": [1]}."""
    fields: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping):
            fields |= flatten(inner, f"{name}.")
        else:
            fields[name] = inner
    return fields


def first_difference(got: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[str, object, object] | None:
    """(field, got, expected) of the first field, by name, that two flat mappings do not share; None if equal."""
    for field in sorted(got.keys() | expected.keys()):
        ours, theirs = got.get(field, "(absent)"), expected.get(field, "(absent)")
        if canonical(ours) != canonical(theirs):
            return field, ours, theirs
    return None


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
