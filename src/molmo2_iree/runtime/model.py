"""The Python interface: load a bundle, prepare a request, call any stage by name, or run the whole line.

>>> model = load(Path("artifacts/.../bundle-0123456789ab"))
>>> payload = model.prepare(messages_for("What is this?", images=1), [Path("a.jpg")])
>>> logits = model.prefill(payload, model.new_cache())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.config import first_that_fits
from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.payload import Image, Payload, check_payload
from molmo2_iree.preprocess.picture import Source
from molmo2_iree.preprocess.prepare import HostProcessor, load_processor, prepare
from molmo2_iree.runtime.bundle import Bundle, open_bundle
from molmo2_iree.runtime.checks import check_values
from molmo2_iree.runtime.device import Device, Module, Value, to_host
from molmo2_iree.stages import STAGES, Program, cache_arrays, dimensions, signature


@dataclass
class Cache:
    """Rows of every slot, on the device. A stage call consumes the arrays and puts its results in their place."""

    arrays: list[Value]


@dataclass
class Model:
    """A loaded bundle. Modules are mapped when first called."""

    bundle: Bundle
    device: Device
    modules: dict[str, Module] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        """What the checkpoint says about the model."""
        return self.bundle.architecture

    @cached_property
    def processor(self) -> HostProcessor:
        """Tokenizer, template and picture settings."""
        return load_processor(self.bundle.processor_folder, self.architecture)

    def prepare(self, messages: Sequence[Mapping[str, Any]], pictures: Sequence[Source]) -> Payload:
        """Messages and pictures, in order of their image parts, as the record the stages take."""
        return prepare(self.processor, messages, pictures)

    def new_cache(self) -> Cache:
        """An empty cache."""
        arrays = cache_arrays(self.architecture, self.bundle.cache.layout())
        return Cache([self.device.zeros(shape, dtype) for _, shape, dtype in arrays])

    # --- any stage by name -----------------------------------------------------------------------------------------

    def add_module(self, program: Program, path: Path) -> None:
        """Load a module that is not part of the bundle, such as a diagnostic build."""
        arguments, _ = signature(program, self.architecture, self.bundle.cache.layout())
        self.modules[program.name] = Module(program, arguments, self.device.load(path, program.stage))

    def call(self, program: Program, arguments: Mapping[str, Any], cache: Cache | None = None) -> list[Any]:
        """Run one program: named arguments in, results in the stage table's order out, taps last, cache replaced.

        Every argument has its bucket's shape. RequestError for anything a module must not see.
        """
        if program.name not in self.modules:
            if program.name not in self.bundle.programs:
                raise RequestError(
                    "program",
                    got=program.name,
                    expected=f"one of {', '.join(self.bundle.programs)}",
                    fix="add the bucket to the configuration and build",
                )
            self.add_module(program, self.bundle.folder / self.bundle.manifest.modules[program.name].file)
        stage = STAGES[program.stage]
        names = [argument.name for argument in stage.arguments]
        if sorted(arguments) != sorted(names) or stage.cache != (cache is not None):
            raise RequestError(
                f"stage {stage.name}",
                got=f"arguments {sorted(arguments)}, cache {cache is not None}",
                expected=f"{names}, cache {stage.cache}",
                fix="pass exactly those",
            )
        values = [_array(arguments[a.name], a.dtype, f"stage {stage.name}, {a.name}") for a in stage.arguments]
        module = self.modules[program.name]
        module.check([*values, *(cache.arrays if cache else [])])
        host = {
            a.name: v
            for a, v in zip(stage.arguments, values, strict=True)
            if a.dtype == "int32" and isinstance(v, np.ndarray)
        }
        check_values(program, host, self.architecture, self.bundle.cache.layout())
        results = module(*values, *(cache.arrays if cache else []))
        if cache is None:
            return results
        first, last = len(stage.results), len(stage.results) + len(cache.arrays)
        cache.arrays = list(results[first:last])
        return results[:first] + results[last:]

    # --- the line, one function an arrow ---------------------------------------------------------------------------

    def vision(self, image: Image) -> Any:
        """Features [C bucket, N, F] of one image's crops, in the smallest bucket that holds them."""
        bucket = self._bucket("crops", image.crops, "crops of one image")
        patches = np.zeros((bucket, *image.patches.shape[1:]), np.float32)
        patches[: image.crops] = image.patches
        return self.call(Program("vision", (bucket,)), {"patches": patches})[0]

    def connector(self, image: Image, features: Value) -> np.ndarray:
        """Image tokens [n, d] of one image; a group without a patch has none."""
        program = Program("connector", (features.shape[0],))
        groups = np.full((dimensions(program, self.architecture)["G"], image.groups.shape[1]), -1, np.int32)
        groups[: len(image.groups)] = image.groups
        tokens, valid = self.call(program, {"features": features, "groups": groups})
        return to_host(tokens)[to_host(valid) == 1]

    def merge(self, payload: Payload, image_tokens: np.ndarray) -> Any:
        """Embeddings [S bucket, d] of a prompt; without pictures ``image_tokens`` is [0, d]."""
        bucket = self._bucket("tokens", len(payload.ids), "prompt tokens, pictures included")
        tokens = np.zeros((bucket, self.architecture.text.width), np.float32)
        tokens[: len(image_tokens)] = image_tokens
        arguments = {"ids": _padded(payload.ids, bucket), "image_tokens": tokens, "count": np.int32(len(image_tokens))}
        return self.call(Program("merge", (bucket,)), arguments)[0]

    def image_tokens(self, payload: Payload) -> np.ndarray:
        """Image tokens [n, d] of every picture, one after the other."""
        parts = [self.connector(image, self.vision(image)) for image in payload]
        return np.concatenate([np.zeros((0, self.architecture.text.width), np.float32), *parts])

    def prefill(self, payload: Payload, cache: Cache, slot: int = 0) -> np.ndarray:
        """Check the payload, run it into a slot; logits [V] of its last token."""
        check_payload(payload, self.architecture)
        self._bucket("tokens", len(payload.ids), "prompt tokens, pictures included")
        return self.prefill_embeddings(payload, self.merge(payload, self.image_tokens(payload)), cache, slot)

    def prefill_embeddings(self, payload: Payload, embeddings: Value, cache: Cache, slot: int = 0) -> np.ndarray:
        """The prefill stage alone, on merged embeddings [S bucket, d]."""
        bucket = embeddings.shape[0]
        arguments = {
            "embeddings": embeddings,
            "types": _padded(payload.types, bucket),
            "length": np.int32(len(payload.ids)),
            "slot": np.int32(slot),
        }
        return to_host(self.call(Program("prefill", (bucket,)), arguments, cache)[0])

    def extend(self, ids: Sequence[int], start: int, cache: Cache, slot: int = 0) -> np.ndarray:
        """Append text ids after ``start`` rows of a slot; logits [V] after the last one."""
        bucket = self._bucket("extend", len(ids), "appended tokens")
        context = self._bucket("context", start + len(ids), "rows of context")
        arguments = {
            "ids": _padded(np.asarray(ids, np.int32), bucket),
            "start": np.int32(start),
            "length": np.int32(len(ids)),
            "slot": np.int32(slot),
        }
        return to_host(self.call(Program("extend", (bucket, context)), arguments, cache)[0])

    def decode(self, ids: Mapping[int, int], positions: Mapping[int, int], cache: Cache) -> dict[int, np.ndarray]:
        """One token for each given slot: slot -> id and slot -> position; logits [V] by slot."""
        if not ids or ids.keys() != positions.keys() or min(ids) < 0:
            raise RequestError(
                "decode",
                got=f"slots {sorted(ids)} and {sorted(positions)}",
                expected="the same slots, at least one",
                fix="give an id and a position for each slot",
            )
        batch = self._bucket("slots", max(ids) + 1, "slots")
        context = self._bucket("context", max(positions.values()) + 1, "rows of context")
        arguments = {name: np.zeros(batch, np.int32) for name in ("ids", "positions", "active")}
        for slot, token in ids.items():
            arguments["ids"][slot], arguments["positions"][slot], arguments["active"][slot] = token, positions[slot], 1
        logits = to_host(self.call(Program("decode", (batch, context)), arguments, cache)[0])
        return {slot: logits[slot] for slot in ids}

    def _bucket(self, name: str, needed: int, what: str) -> int:
        sizes = getattr(self.bundle.buckets, name)
        bucket = first_that_fits(sizes, needed)
        if bucket is None:
            raise RequestError(
                what,
                got=needed,
                expected=f"at most {sizes[-1]}",
                fix=f"ask for less, or build with a larger size in buckets.{name}",
            )
        return bucket


def load(folder: Path, expected: Mapping[str, Any] | None = None, *, verify_all: bool = False) -> Model:
    """Open, check and load a bundle; see :func:`molmo2_iree.runtime.bundle.open_bundle`."""
    bundle = open_bundle(folder, expected, verify_all=verify_all)
    return Model(bundle, Device(folder, bundle.manifest.archives))


def _array(value: Any, dtype: str, where: str) -> Value:
    """Python integers become scalars of the argument's dtype; integer arrays are brought to the host to be checked."""
    if isinstance(value, int | np.integer):
        if not -(2**31) <= int(value) < 2**31:
            raise RequestError(where, got=int(value), expected="a 32-bit integer", fix="pass a value in range")
        return np.asarray(value, np.int32)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value) if value.ndim else value
    if hasattr(value, "to_host"):
        return to_host(value) if dtype == "int32" else value
    raise RequestError(where, got=type(value).__name__, expected="a numpy array", fix=f"pass a numpy array of {dtype}")


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    """[1, 2] padded to 4 is [1, 2, 0, 0]."""
    return np.pad(values, (0, size - len(values)))
