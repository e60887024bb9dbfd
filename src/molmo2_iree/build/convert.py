"""Filter and convert: a checkpoint's tensors become the archives the stages read.

One name table (``model.parameters``) says what is expected. Every disagreement is refused by name and leaves nothing
under a final name; vision archives hold no text, text archives no vision, and blocks no stage runs are left out.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.archive import Written, write_archive
from molmo2_iree.build.tensors import DTYPES, Stored, read_headers, read_parts
from molmo2_iree.errors import WeightsError
from molmo2_iree.model.parameters import Parameter, parameters
from molmo2_iree.model.rotation import rotation_table

INDEX_FILE = "weights.json"
Progress = Callable[[int], None]
"""Called with the number of bytes just written."""

_NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_UNUSED_BLOCK = re.compile(r"model\.vision_backbone\.image_vit\.transformer\.resblocks\.(\d+)\.")


def convert(checkpoint: Path, architecture: Architecture, storage: str, output: Path, progress: Progress) -> list[Path]:
    """Write ``vision.irpa``, ``text.irpa`` and, last, ``weights.json`` into ``output``.

    Holds a few parts of one tensor at a time. WeightsError for a missing, unknown, duplicate, mis-shaped,
    wrong-dtype or non-finite tensor, a stale index or a corrupt header.
    """
    table = parameters(architecture)
    stored = check_names(read_headers(checkpoint), table, architecture)
    output.mkdir(parents=True, exist_ok=True)
    archives: dict[str, list[Parameter]] = {}
    for parameter in table:
        archives.setdefault(parameter.archive, []).append(parameter)
    written: dict[str, Written] = {}
    temporaries = {name: output / f".{name}.irpa.tmp" for name in archives}
    index = output / f".{INDEX_FILE}.tmp"
    try:
        for name, chosen in archives.items():
            sizes = [(p.name, int(np.prod(p.shape)) * _NUMPY[p.dtype(storage)].itemsize) for p in chosen]
            parts = _parts(chosen, stored, architecture, storage, progress)
            written[name] = write_archive(temporaries[name], sizes, parts)
        index.write_text(json.dumps(_describe(archives, written, storage), indent=1, sort_keys=True), encoding="utf-8")
    except BaseException:
        for temporary in (*temporaries.values(), index):
            temporary.unlink(missing_ok=True)
        raise
    final = [temporaries[name].replace(output / f"{name}.irpa") for name in archives]
    return [*final, index.replace(output / INDEX_FILE)]


def check_names(found: dict[str, Stored], table: list[Parameter], architecture: Architecture) -> dict[str, Stored]:
    """The stored tensor of every parameter, by parameter name; refuses anything the table does not explain."""
    expected = {p.original: p for p in table if p.original is not None}
    for name in sorted(expected.keys() - found.keys()):
        raise WeightsError(
            f"tensor {name}",
            got="not in the checkpoint",
            expected=f"shape {expected[name].shape}",
            fix="fetch the checkpoint again, or correct config.json",
        )
    for name in sorted(found.keys() - expected.keys()):
        if not _is_unused_block(name, architecture):
            raise WeightsError(
                f"tensor {name}",
                got=f"an unknown tensor in {found[name].shard.name}",
                expected="only tensors of a Molmo2 release",
                fix="remove it, or correct config.json",
            )
    for name, parameter in expected.items():
        tensor = found[name]
        if tensor.shape != parameter.shape:
            raise WeightsError(
                f"tensor {name}",
                got=f"shape {tensor.shape}",
                expected=f"{parameter.shape} as config.json says",
                fix="correct config.json or the checkpoint",
            )
        if tensor.dtype not in DTYPES:
            raise WeightsError(
                f"tensor {name}",
                got=f"dtype {tensor.dtype}",
                expected=" or ".join(DTYPES),
                fix="save the checkpoint in one of them",
            )
    return {parameter.name: found[name] for name, parameter in expected.items()}


def _is_unused_block(name: str, architecture: Architecture) -> bool:
    """A declared ViT block deeper than the deepest selected one: known, and left out."""
    match = _UNUSED_BLOCK.match(name)
    return match is not None and architecture.vision.blocks <= int(match[1]) < architecture.vision.declared_blocks


def _parts(
    chosen: list[Parameter], stored: dict[str, Stored], architecture: Architecture, storage: str, progress: Progress
) -> Iterator[tuple[str, np.ndarray]]:
    for parameter in chosen:
        target = _NUMPY[parameter.dtype(storage)]
        source = stored.get(parameter.name)
        if source is None:
            table = rotation_table(architecture.text, parameter.name)
            progress(table.nbytes)
            yield parameter.name, table
            continue
        done = 0
        for part in read_parts(source):
            cast = part.astype(target, copy=False)
            _check_finite(source, part, cast, done)
            done += part.size
            progress(cast.nbytes)
            yield parameter.name, cast


def _check_finite(source: Stored, part: np.ndarray, cast: np.ndarray, before: int) -> None:
    for values, what in ((part, "in the checkpoint"), (cast, f"after conversion to {cast.dtype}")):
        # A sum is finite only if every element is, and needs no array of flags; the flags then find the place.
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.isfinite(np.sum(values, dtype=np.float64))
        if not whole and not (finite := np.isfinite(values.astype(np.float32))).all():
            at = int(np.argmin(finite))
            raise WeightsError(
                f"tensor {source.name}, element {before + at}",
                got=f"{values[at]} {what}",
                expected="finite numbers",
                fix="fetch the checkpoint again, or choose another storage dtype",
            )


def _describe(archives: dict[str, list[Parameter]], written: dict[str, Written], storage: str) -> dict[str, object]:
    return {
        "storage": storage,
        "archives": {
            name: {
                "file": f"{name}.irpa",
                "size": written[name].size,
                "sha256": written[name].sha256,
                "tensors": {
                    p.name: {"dtype": p.dtype(storage), "shape": list(p.shape), "sha256": written[name].tensors[p.name]}
                    for p in chosen
                },
            }
            for name, chosen in archives.items()
        },
    }
