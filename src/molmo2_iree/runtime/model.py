"""The Python interface: load a bundle, prepare a request, call any stage by name, or run the whole line.

Whatever is passed, a MolmoError says what is wrong with it; docs/python-api.md has examples.

>>> model = load(Path("artifacts/.../bundle-0123456789ab"))
>>> payload = model.prepare(messages_for("What is this?", images=1), [Path("a.jpg")])
>>> logits = model.prefill(payload, model.new_cache())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.config import first_that_fits
from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.payload import Image, Payload, check_payload
from molmo2_iree.preprocess.picture import Source
from molmo2_iree.preprocess.prepare import HostProcessor, load_processor, prepare
from molmo2_iree.runtime.bundle import Bundle, open_bundle
from molmo2_iree.runtime.checks import array, check_range, check_values, instance, whole, wholes
from molmo2_iree.runtime.device import Device, Module, Value, described, to_host
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

    def call(
        self, program: Program | str, arguments: Mapping[str, Any], cache: Cache | None = None
    ) -> list[rt.DeviceArray]:
        """Run one program: named arguments in, results in the stage table's order out, taps last, cache replaced.

        A program is given as itself or by name, such as "prefill-s256". Every argument has its bucket's shape and
        dtype; nothing is converted but Python integers. RequestError for anything a module must not see.
        """
        module = self._module(program)
        stage = STAGES[module.program.stage]
        names = [argument.name for argument in stage.arguments]
        instance("arguments", arguments, Mapping)
        if set(arguments) != set(names) or stage.cache != (cache is not None):
            raise RequestError(
                f"stage {stage.name}",
                got=f"arguments {sorted(map(str, arguments))}, cache {cache is not None}",
                expected=f"{names}, cache {stage.cache}",
                fix="pass exactly those",
            )
        values = [_array(arguments[a.name], a.dtype, f"stage {stage.name}, {a.name}") for a in stage.arguments]
        rows = _rows(cache) if cache is not None else []
        module.check([*values, *rows])
        host = {a.name: np.asarray(v) for a, v in zip(stage.arguments, values, strict=True) if a.dtype == "int32"}
        check_values(module.program, host, self.architecture, self.bundle.cache.layout())
        results = module(*values, *rows)
        if cache is None:
            return results
        first, last = len(stage.results), len(stage.results) + len(rows)
        cache.arrays = list(results[first:last])
        return results[:first] + results[last:]

    def _module(self, program: Program | str) -> Module:
        try:
            name = program.name if isinstance(program, Program) else str(program)
        except (KeyError, TypeError, ValueError):
            name = repr(program)[:120]
        loaded = self.modules.get(name)
        if loaded is not None:
            return loaded
        planned = self.bundle.programs.get(name)
        if planned is None:
            raise RequestError(
                "program",
                got=name,
                expected=f"one of {', '.join(self.bundle.programs)}",
                fix="add the bucket to the configuration and build",
            )
        self.add_module(planned, self.bundle.folder / self.bundle.manifest.modules[name].file)
        return self.modules[name]

    # --- the line, one function an arrow ---------------------------------------------------------------------------

    def vision(self, image: Image) -> rt.DeviceArray:
        """Features [C bucket, N, F] of one image's crops, in the smallest bucket that holds them."""
        sizes = self.architecture.vision
        instance("image", image, Image)
        given = array("image.patches", image.patches, "float32", None, sizes.patches, sizes.patch_values)
        crops = whole("image.crops", image.crops, len(given), len(given))
        bucket = self._bucket("crops", crops, "crops of one image")
        patches = np.zeros((bucket, *given.shape[1:]), np.float32)
        patches[:crops] = given
        return self.call(Program("vision", (bucket,)), {"patches": patches})[0]

    def connector(self, image: Image, features: Value) -> np.ndarray:
        """Image tokens [n, d] of one image; a group without a patch has none."""
        instance("image", image, Image)
        group, buckets = self.architecture.processor.group_size, self.bundle.buckets.crops
        given = array("image.groups", image.groups, "int32", None, group)
        crops = whole("image.crops", image.crops, 1, buckets[-1])
        check_range("image.groups", given, -1, crops * self.architecture.vision.patches - 1)
        program = Program("connector", (_length("features", features),))
        if program.bucket[0] not in buckets or program.bucket[0] < crops:
            raise RequestError(
                "features",
                got=described(features),
                expected=f"what vision gave for these {crops} crops",
                fix="call vision first",
            )
        most = dimensions(program, self.architecture)["G"]
        whole("rows of image.groups", len(given), 0, most)
        groups = np.full((most, group), -1, np.int32)
        groups[: len(given)] = given
        tokens, valid = self.call(program, {"features": features, "groups": groups})
        return to_host(tokens)[to_host(valid) == 1]

    def merge(self, payload: Payload, image_tokens: np.ndarray) -> rt.DeviceArray:
        """Embeddings [S bucket, d] of a prompt; without pictures ``image_tokens`` is [0, d]."""
        instance("payload", payload, Payload)
        ids = array("payload.ids", payload.ids, "int32", None)
        given = array("image tokens", image_tokens, "float32", None, self.architecture.text.width)
        bucket = self._bucket("tokens", len(ids), "prompt tokens, pictures included")
        count = whole("rows of the image tokens", len(given), 0, bucket)
        tokens = np.zeros((bucket, given.shape[1]), np.float32)
        tokens[:count] = given
        arguments = {"ids": _padded(ids, bucket), "image_tokens": tokens, "count": np.int32(count)}
        return self.call(Program("merge", (bucket,)), arguments)[0]

    def image_tokens(self, payload: Payload) -> np.ndarray:
        """Image tokens [n, d] of every picture, one after the other."""
        instance("payload", payload, Payload)
        check_payload(payload, self.architecture)
        return self._image_tokens(payload)

    def _image_tokens(self, payload: Payload) -> np.ndarray:
        parts = [self.connector(image, self.vision(image)) for image in payload]
        return np.concatenate([np.zeros((0, self.architecture.text.width), np.float32), *parts])

    def prefill(self, payload: Payload, cache: Cache, slot: int = 0) -> np.ndarray:
        """Check the payload, run it into a slot; logits [V] of its last token."""
        instance("payload", payload, Payload)
        check_payload(payload, self.architecture)
        self._bucket("tokens", len(payload.ids), "prompt tokens, pictures included")
        return self.prefill_embeddings(payload, self.merge(payload, self._image_tokens(payload)), cache, slot)

    def prefill_embeddings(self, payload: Payload, embeddings: Value, cache: Cache, slot: int = 0) -> np.ndarray:
        """The prefill stage alone, on merged embeddings [S bucket, d]."""
        instance("payload", payload, Payload)
        types = array("payload.types", payload.types, "int32", None)
        bucket = _length("embeddings", embeddings)
        arguments = {
            "embeddings": embeddings,
            "types": _padded(types, whole("rows of the embeddings", bucket, len(types), max(bucket, len(types)))),
            "length": len(types),
            "slot": slot,
        }
        return to_host(self.call(Program("prefill", (bucket,)), arguments, cache)[0])

    def extend(self, ids: Sequence[int] | np.ndarray, start: int, cache: Cache, slot: int = 0) -> np.ndarray:
        """Append text ids after ``start`` rows of a slot; logits [V] after the last one."""
        given = wholes("ids", ids, 0, self._last_id)
        begin = whole("start", start, 0, self.bundle.cache.context)
        bucket = self._bucket("extend", len(given), "appended tokens")
        context = self._bucket("context", begin + len(given), "rows of context")
        arguments = {"ids": _padded(given, bucket), "start": begin, "length": len(given), "slot": slot}
        return to_host(self.call(Program("extend", (bucket, context)), arguments, cache)[0])

    def decode(self, ids: Mapping[int, int], positions: Mapping[int, int], cache: Cache) -> dict[int, np.ndarray]:
        """One token for each given slot: slot -> id and slot -> position; logits [V] by slot."""
        instance("ids", ids, Mapping)
        instance("positions", positions, Mapping)
        if not ids or ids.keys() != positions.keys():
            raise RequestError(
                "decode",
                got=f"slots {list(ids)} and {list(positions)}",
                expected="the same slots, at least one",
                fix="give an id and a position for each slot",
            )
        layout = self.bundle.cache
        slots = wholes("slots", list(ids), 0, layout.slots - 1)
        tokens = wholes("ids", list(ids.values()), 0, self._last_id)
        places = wholes("positions", [positions[slot] for slot in ids], 0, layout.context - 1)
        batch = self._bucket("slots", int(slots.max()) + 1, "slots")
        context = self._bucket("context", int(places.max()) + 1, "rows of context")
        arguments = {name: np.zeros(batch, np.int32) for name in ("ids", "positions", "active")}
        for name, values in (("ids", tokens), ("positions", places), ("active", 1)):
            arguments[name][slots] = values
        logits = to_host(self.call(Program("decode", (batch, context)), arguments, cache)[0])
        return {slot: logits[slot] for slot in ids}

    @property
    def _last_id(self) -> int:
        return self.architecture.text.vocabulary + self.architecture.text.extra_vocabulary - 1

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


def load(folder: Path | str, expected: Mapping[str, Any] | None = None, *, verify_all: bool = False) -> Model:
    """Open, check and load a bundle; see :func:`molmo2_iree.runtime.bundle.open_bundle`."""
    bundle = open_bundle(folder, expected, verify_all=verify_all)
    return Model(bundle, Device(bundle.folder, bundle.manifest.archives))


def _array(value: Any, dtype: str, where: str) -> Value:
    """Python integers become int32 scalars; integers on the device are brought to the host to be checked."""
    if isinstance(value, int | np.integer):
        return np.asarray(whole(where, value, -(2**31), 2**31 - 1), np.int32)
    if isinstance(value, rt.DeviceArray):
        return to_host(value) if dtype == "int32" else value
    if type(value) is np.ndarray:  # a subclass, such as a masked array, hides values from the checks
        return np.ascontiguousarray(value) if value.ndim else value
    raise RequestError(
        where, got=type(value).__name__, expected="a plain numpy array", fix=f"pass a numpy array of {dtype}"
    )


def _rows(cache: Cache) -> list[Value]:
    instance("cache", cache, Cache)
    instance("cache.arrays", cache.arrays, list)
    return cache.arrays


def _length(where: str, value: Value) -> int:
    """Rows of an argument that is still to be checked."""
    if not isinstance(value, Value) or not value.shape:
        raise RequestError(where, got=described(value), expected="an array", fix="pass what the stage before gave")
    return int(value.shape[0])


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    """[1, 2] padded to 4 is [1, 2, 0, 0]."""
    return np.pad(values, (0, size - len(values)))
