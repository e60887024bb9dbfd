"""Files that are whole or absent: written beside their place, then renamed."""

import os
import shutil
from pathlib import Path


def _beside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_whole(path: Path, data: bytes | str) -> None:
    """Write bytes, or text as UTF-8."""
    temporary = _beside(path)
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    temporary.replace(path)


def copy_whole(source: Path, path: Path) -> None:
    """Copy the content of a file."""
    temporary = _beside(path)
    shutil.copyfile(source, temporary)
    temporary.replace(path)


def link_whole(source: Path, path: Path) -> None:
    """Give a large file a second name; a copy where the file system allows none."""
    temporary = _beside(path)
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    temporary.replace(path)
