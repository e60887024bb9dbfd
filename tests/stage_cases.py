"""Checkpoints of every kind on disk, their stages as JAX runs them, and requests that fit any of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.embedded import OLMO, Variant, write_checkpoint
from molmo2_iree.detect import read_architecture
from molmo2_iree.model.parameters import Parameter, parameters, stage_parameters
from molmo2_iree.model.programs import Model, traceable
from molmo2_iree.model.rotation import rotation_table
from molmo2_iree.parity.rounding import rounded_checkpoint
from molmo2_iree.parity.specification import specify
from molmo2_iree.stages import CacheLayout, cache_arrays, parse_program, signature, tap_names

Arrays = dict[str, np.ndarray]
RELATIVE = 2e-5
"""Largest float32 error of a stage, as a share of its largest value: 2.3e-6 was measured."""

LAYOUT = CacheLayout(slots=4, context=80, dtype="float32")
TOKENS = 64
FAST_COMPILE = {"xla_backend_optimization_level": 0}
JUNK = 1e4
"""Fills whatever a stage must not read."""

LEAN = Variant(
    vit_width=40,
    vit_heads=3,
    vit_head_dim=8,
    vit_intermediate=52,
    vit_blocks=5,
    vit_layers=(-2, -4),
    patch_size=6,
    grid=5,
    text_layers=2,
    text_width=48,
    text_intermediate=72,
    heads=6,
    kv_heads=2,
    max_positions=128,
    shards=1,
)
"""Blocks 3 and 1 of 5, 25 patches a crop, three query heads a kv head; heads times head dim is no width."""

PICTURES: dict[str, tuple[Variant, tuple[int, int]]] = {
    "default": (Variant(), (2, 2)),
    "lean": (LEAN, (2, 2)),
    "unmasked pooling": (replace(LEAN, pooling_mask=False), (2, 2)),
    "nine patches a group": (replace(LEAN, vit_layers=(-1,)), (3, 3)),
    "nine patches unmasked": (replace(LEAN, pooling_mask=False), (3, 3)),
    "three layers, the first block": (replace(LEAN, vit_layers=(0, -1, 2)), (2, 2)),
    "whole vectors": (replace(LEAN, grid=4, patch_size=14), (2, 2)),
    "49 patches": (replace(LEAN, grid=7, vit_layers=(-5,)), (2, 2)),
}
"""What the vision, connector and merge stages can differ in, by (checkpoint, pooling size)."""

DECODERS: dict[str, Variant] = {
    "default": Variant(),
    "olmo": OLMO,
    "lean": LEAN,
    "no q/k norm": replace(LEAN, qk_norm="none"),
    "full-width q/k norm": replace(LEAN, qk_norm="olmo"),
    "norm after": replace(LEAN, norm_after=True),
    "norm after, no q/k norm, one kv head": replace(LEAN, norm_after=True, qk_norm="none", kv_heads=1),
    "yarn first": replace(LEAN, yarn_layers=(0,), rope_theta=5e5),
    "yarn everywhere": replace(LEAN, yarn_layers=(0, 1), yarn_original_positions=32, kv_heads=6),
    "yarn nowhere": replace(LEAN, yarn_layers=()),
}
"""What the prefill, extend and decode stages can differ in."""


@dataclass
class Checkpoint:
    """A checkpoint folder and its parameters as a build with this storage keeps them."""

    folder: Path
    architecture: Architecture
    arrays: Arrays
    storage: str = "float32"
    _jitted: dict[Any, Any] = field(default_factory=dict)

    def run(self, program: str, *given: Any, cache: CacheLayout = LAYOUT, causal: bool = False) -> Arrays:
        """Results by the stage table's names, then taps; scalars and arrays must fit the program's signature."""
        chosen = parse_program(program)
        key = (program, cache, causal)
        if key not in self._jitted:
            prepared = traceable(Model(self.architecture, cache, self.storage, causal), chosen)
            self._jitted[key] = jax.jit(prepared.function, compiler_options=FAST_COMPILE)
        arguments, results = signature(chosen, self.architecture, cache)
        assert [(np.shape(array), str(np.asarray(array).dtype)) for array in given] == [a[1:] for a in arguments]
        weights = [self.arrays[p.name] for p in stage_parameters(self.architecture, chosen.stage)]
        found = [np.asarray(array) for array in self._jitted[key](*weights, *given)]
        assert [(array.shape, str(array.dtype)) for array in found[: len(results)]] == [r[1:] for r in results]
        names = [name for name, _, _ in results]
        names += tap_names(chosen.stage, self.architecture) if chosen.taps else []
        return dict(zip(names, found, strict=True))


def write(folder: Path, variant: Variant, pooling: tuple[int, int] = (2, 2), storage: str = "float32") -> Checkpoint:
    """Write the checkpoint with this pooling size; with bfloat16 storage the folder holds the rounded matrices."""
    write_checkpoint(folder, variant=variant)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pooling_size": list(pooling)}), encoding="utf-8")
    files = {path.name: json.loads(path.read_text()) for path in folder.glob("*config.json")}
    architecture = read_architecture(files)
    stored: Arrays = {}
    for shard in folder.glob("*.safetensors"):
        stored |= load_file(shard)

    def array(p: Parameter) -> np.ndarray:
        values = rotation_table(architecture.text, p.name) if p.original is None else stored[p.original]
        return values.astype(ml_dtypes.bfloat16) if p.dtype(storage) == "bfloat16" else values

    arrays = {p.name: array(p) for p in parameters(architecture)}
    return Checkpoint(rounded_checkpoint(folder, storage, folder / "rounded"), architecture, arrays, storage)


@dataclass(frozen=True)
class Request:
    """Arguments of the specification: crops and groups of all images, and where each image's end."""

    ids: np.ndarray
    types: np.ndarray
    patches: np.ndarray
    groups: np.ndarray
    crops: tuple[int, ...]
    group_counts: tuple[int, ...]

    def specify(self, folder: Path, more: Sequence[int] = (), causal: bool = False) -> Arrays:
        """Every intermediate in float64, with ``more`` text after the prompt."""
        return specify(
            folder,
            np.append(self.ids, np.array(more, np.int32)),
            np.append(self.types, np.zeros(len(more), np.int32)),
            self.patches,
            self.groups,
            self.crops,
            group_counts=self.group_counts,
            causal_image=causal,
        )


def groups(generator: np.random.Generator, patches: int, size: int) -> np.ndarray:
    """Groups [10, size] with all, 4, 2, 1 and no patches, -1 at any place; patch 0 is in none."""
    table = np.full((10, size), -1, np.int32)
    for row, count in zip(table, [size, 4, 2, 1, 0] * 2, strict=True):
        places = generator.permutation(size)[:count]
        row[places] = 1 + generator.permutation(patches - 1)[:count]
    return table


def make_request(architecture: Architecture, seed: int, crops: tuple[int, ...] = (2, 1)) -> Request:
    """A prompt with one image for each entry of ``crops``, text before, between and after, some of it of extra ids."""
    a, generator = architecture, np.random.default_rng(seed)
    token, tables = a.tokens, []
    ids = [token.bos, *generator.integers(0, 200, 3)]
    for count in crops:
        tables.append(groups(generator, count * a.vision.patches, a.processor.group_size))
        kept = int(np.count_nonzero((tables[-1] >= 0).any(1)))
        ids += [token.image_start, *[token.image_patch] * 3, token.image_column, *[token.image_patch] * (kept - 3)]
        ids += [token.image_end, *generator.integers(0, 200, 2)]
    ids += [a.text.vocabulary + a.text.extra_vocabulary - 1, *generator.integers(0, 200, 4 + seed % 3)]
    return Request(
        ids=np.array(ids, np.int32),
        types=np.isin(ids, token.image_part).astype(np.int32),
        patches=generator.uniform(-1, 1, (sum(crops), a.vision.patches, a.vision.patch_values)).astype(np.float32),
        groups=np.concatenate([np.zeros((0, a.processor.group_size), np.int32), *tables]),
        crops=crops,
        group_counts=tuple(len(table) for table in tables),
    )


def padded(array: np.ndarray, length: int, value: float = JUNK) -> np.ndarray:
    """float32 or int32, ``length`` rows of which the later ones hold ``value``."""
    kind = np.int32 if array.dtype.kind == "i" else np.float32
    rest = np.full((length - len(array), *array.shape[1:]), value, kind)
    return np.concatenate([array.astype(kind), rest])


def close(got: np.ndarray, wanted: np.ndarray, relative: float, name: str = "") -> None:
    """Largest difference as a share of the largest value."""
    assert got.shape == wanted.shape, name
    error, top = np.abs(got.astype(np.float64) - wanted).max(), np.abs(wanted).max()
    assert error <= relative * top, f"{name}: {error} of {top}"


def i32(value: int) -> np.ndarray:
    """A scalar argument."""
    return np.array(value, np.int32)


def junk_cache(checkpoint: Checkpoint, layout: CacheLayout = LAYOUT) -> list[np.ndarray]:
    """Random rows that no step may read before it has written them."""
    generator = np.random.default_rng(1)
    return [
        (JUNK * generator.normal(size=shape)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for _, shape, dtype in cache_arrays(checkpoint.architecture, layout)
    ]


def cache_of(results: Arrays) -> list[np.ndarray]:
    return [array for name, array in results.items() if name.startswith(("keys.", "values."))]


def prefill(
    checkpoint: Checkpoint, wanted: Arrays, request: Request, slot: int, cache: list[np.ndarray], **options: Any
) -> Arrays:
    """The prompt in a slot; rows and types behind its length are junk."""
    length, causal = len(request.ids), options.pop("causal", False)
    return checkpoint.run(
        f"prefill-s{TOKENS}-taps",
        padded(wanted["merge.embeddings"], TOKENS),
        padded(request.types, TOKENS, 1),
        i32(length),
        i32(slot),
        *cache,
        causal=causal,
        cache=options.pop("layout", LAYOUT),
    )
