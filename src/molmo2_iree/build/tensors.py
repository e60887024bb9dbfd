"""Read the tensors of a checkpoint: headers checked as a whole first, then data in parts, never a whole shard.

A shard is validated by the safetensors library; parts are then read from its file, because the library's own mapping
would count every page it touched as this process's memory.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from molmo2_iree.errors import WeightsError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
PART = 1 << 22
"""Elements read at a time."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a shard: ``offset`` in bytes from the start of the file."""

    name: str
    shard: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_headers(folder: Path) -> dict[str, Stored]:
    """Every stored tensor by name. WeightsError for a corrupt header, a duplicate, or an index that does not match."""
    index = _index(folder)
    shards = [SINGLE] if index is None else sorted(set(index.values()))
    found: dict[str, Stored] = {}
    for shard in shards:
        for tensor in _shard(folder / shard):
            if tensor.name in found:
                raise WeightsError(
                    f"tensor {tensor.name}",
                    got=f"stored in {found[tensor.name].shard.name} and in {shard}",
                    expected="one place",
                    fix="write the checkpoint again",
                )
            found[tensor.name] = tensor
    if index is not None:
        _check_index(index, found)
    return found


def read_parts(tensor: Stored) -> Iterator[np.ndarray]:
    """The tensor's elements in order, flat, in parts of at most PART elements, in the stored dtype."""
    dtype = DTYPES[tensor.dtype]
    left = int(np.prod(tensor.shape, dtype=np.int64))
    with tensor.shard.open("rb", buffering=0) as file:
        file.seek(tensor.offset)
        while left:
            part = np.fromfile(file, dtype, min(left, PART))
            if not part.size:
                raise WeightsError(
                    f"{tensor.shard}, tensor {tensor.name}",
                    got="the end of the file",
                    expected=f"{left} more elements",
                    fix="molmo2 fetch",
                )
            left -= part.size
            yield part


def _index(folder: Path) -> dict[str, str] | None:
    path = folder / INDEX
    if not path.exists():
        if (folder / SINGLE).exists():
            return None
        raise WeightsError(str(folder), got="no weights", expected=f"{INDEX} or {SINGLE}", fix="molmo2 fetch")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(index, dict) or not all(isinstance(shard, str) for shard in index.values()):
            raise TypeError("weight_map")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(
            str(path), got=f"no usable index ({error})", expected="a JSON object with weight_map", fix="molmo2 fetch"
        ) from error
    return index


def _shard(path: Path) -> Iterator[Stored]:
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
        with path.open("rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8))
            header = json.loads(raw.read(length), object_pairs_hook=_no_duplicates)
    except (SafetensorError, OSError, ValueError, struct.error) as error:
        raise WeightsError(
            str(path), got=f"an unreadable safetensors file ({error})", expected="a whole shard", fix="molmo2 fetch"
        ) from error
    for name, entry in header.items():
        if name in names:
            offset = 8 + length + entry["data_offsets"][0]
            yield Stored(name, path, entry["dtype"], tuple(entry["shape"]), offset)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        twice = next(name for name in seen if [key for key, _ in pairs].count(name) > 1)
        raise ValueError(f"{twice} appears twice in the header")
    return seen


def _check_index(index: dict[str, str], found: dict[str, Stored]) -> None:
    for name, shard in sorted(index.items()):
        got = found[name].shard.name if name in found else "nowhere"
        if got != shard:
            raise WeightsError(
                f"{INDEX}, tensor {name}",
                got=f"stored {got}",
                expected=f"in {shard} as the index says",
                fix="write the index again, it is stale",
            )
    for name in sorted(found.keys() - index.keys()):
        raise WeightsError(
            f"{INDEX}, tensor {name}",
            got=f"stored in {found[name].shard.name}",
            expected="an entry of the index",
            fix="write the index again, it is stale",
        )
