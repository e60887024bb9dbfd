"""Write a parameter archive that IREE maps into memory as it lies on disk, tensor by tensor.

The format (IRPA, version 0): a header with counts and segment ranges, one 76-byte entry per tensor, the names, then
the data, each tensor at a multiple of 64 bytes from a data segment that starts on a page. All integers little-endian.
The compiler's own writer wants every tensor in memory at once; this one takes them in turn.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

_PREFIX = struct.Struct("<4sHHQQQ")
_HEADER = struct.Struct("<QQQQQQQ")
_ENTRY = struct.Struct("<QIQQQQQQQQ")
_DATA_ENTRY = 2
_ALIGNMENT = 64
_PAGE = 4096


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies: ``offset`` and ``length`` in bytes from the start of the file."""

    name: str
    offset: int
    length: int


def layout(sizes: Sequence[tuple[str, int]]) -> tuple[bytes, list[Slot], int]:
    """(header bytes up to the data segment, one slot per tensor, file size) for (name, byte length) pairs in order."""
    entry_stride = -(-_ENTRY.size // 16) * 16
    entries_at = _PREFIX.size + _HEADER.size
    entries_at = -(-entries_at // 16) * 16
    entries_length = entry_stride * len(sizes)
    names_at = entries_at + entries_length
    names = b"".join(name.encode() for name, _ in sizes)
    data_at = -(-(names_at + len(names)) // _PAGE) * _PAGE
    entries, slots = bytearray(), []
    name_offset = data_offset = 0
    for name, length in sizes:
        encoded = len(name.encode())
        entry = _ENTRY.pack(_ENTRY.size, _DATA_ENTRY, 0, name_offset, encoded, 0, 0, _ALIGNMENT, data_offset, length)
        entries += entry.ljust(entry_stride, b"\0")
        slots.append(Slot(name, data_at + data_offset, length))
        name_offset += encoded
        data_offset = -(-(data_offset + length) // _ALIGNMENT) * _ALIGNMENT
    header = _PREFIX.pack(b"IRPA", 0, 0, _PREFIX.size + _HEADER.size, 0, 0)
    header += _HEADER.pack(len(sizes), entries_at, entries_length, names_at, len(names), data_at, data_offset)
    return (
        (header.ljust(entries_at, b"\0") + bytes(entries) + names).ljust(data_at, b"\0"),
        slots,
        data_at + data_offset,
    )


@dataclass(frozen=True)
class Written:
    """What was written: the file's size and sha256, and each tensor's sha256 in order."""

    size: int
    sha256: str
    tensors: dict[str, str]


def write_archive(path: Path, sizes: Sequence[tuple[str, int]], chunks: Iterable[tuple[str, np.ndarray]]) -> Written:
    """Write ``path`` from (name, array part) pairs that follow ``sizes`` in order; parts of a tensor are consecutive.

    Holds one part at a time. The caller names a temporary file and renames it. ValueError if the parts do not
    add up to the promised sizes.
    """
    header, slots, size = layout(sizes)
    total = hashlib.sha256()
    digests: dict[str, str] = {}
    parts = iter(chunks)
    with path.open("wb") as file:
        _put(file, header, total)
        for slot in slots:
            _put(file, b"\0" * (slot.offset - file.tell()), total)
            tensor, done = hashlib.sha256(), 0
            while done < slot.length:
                name, part = next(parts, ("", np.empty(0)))
                if name != slot.name or done + part.nbytes > slot.length or not part.nbytes:
                    raise ValueError(
                        f"{path.name}, {slot.name}: {done} of {slot.length} bytes, then a part of {name!r}"
                    )
                data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                tensor.update(data)
                _put(file, data, total)
                done += part.nbytes
            digests[slot.name] = tensor.hexdigest()
        if (left := next(parts, None)) is not None:
            raise ValueError(f"{path.name}, {left[0]}: {left[1].nbytes} bytes after the last tensor")
        _put(file, b"\0" * (size - file.tell()), total)
        file.flush()
        os.fsync(file.fileno())
        return Written(size, total.hexdigest(), digests)


def _put(file: BinaryIO, data: bytes | memoryview, total: "hashlib._Hash") -> None:
    total.update(data)
    file.write(data)
