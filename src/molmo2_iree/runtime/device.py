"""The native side: one device, one mapping of each archive, modules loaded when first called."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np

from molmo2_iree.errors import BundleError, RequestError
from molmo2_iree.manifest import Archive
from molmo2_iree.runtime.interrupt import uninterrupted
from molmo2_iree.stages import STAGES, Program

ENTRY = "main"

NATIVE_ERRORS = (LookupError, OSError, RuntimeError, ValueError)
"""What the bindings raise for a status that is not OK."""

Value = np.ndarray | rt.DeviceArray
"""An argument or result: on the host, or already on the device."""

_ELEMENTS = {"float32": rt.HalElementType.FLOAT_32, "bfloat16": rt.HalElementType.BFLOAT_16}
_NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "int32": np.dtype(np.int32)}


class Device:
    """A CPU device. Weights are mapped once and shared by every module loaded on it."""

    def __init__(self, folder: Path, archives: dict[str, Archive]) -> None:
        self.instance = rt.VmInstance()
        self.device = rt.get_device("local-task")
        self._parameters: dict[str, rt.VmModule] = {}
        for name, archive in archives.items():
            self._parameters[name] = self._map(folder / archive.file, name, archive)

    @uninterrupted()
    def _map(self, path: Path, scope: str, archive: Archive) -> rt.VmModule:
        index = rt.ParameterIndex()
        try:
            index.load(str(path))
            missing = sorted(archive.tensors.keys() - {key for key, _ in index.items()})
        except NATIVE_ERRORS as error:
            raise BundleError(
                str(path), got=str(error)[:300], expected="an archive of weights", fix="snakemake all"
            ) from error
        if missing:
            raise BundleError(
                f"{path}, tensor {missing[0]}",
                got="not in the archive",
                expected="every tensor of the manifest",
                fix="snakemake all",
            )
        return rt.create_io_parameters_module(self.instance, index.create_provider(scope=scope))

    @uninterrupted()
    def load(self, path: Path, stage: str) -> rt.FunctionInvoker:
        """Map a module and bind its parameters. BundleError if one does not resolve."""
        try:
            module = rt.VmModule.mmap(self.instance, str(path))
            parameters = self._parameters[STAGES[stage].archive]
            context = rt.VmContext(
                self.instance, modules=[parameters, rt.create_hal_module(self.instance, self.device), module]
            )
            function = module.lookup_function(ENTRY)
            if function is None:
                raise KeyError(f"no function {ENTRY}")
            return rt.FunctionInvoker(context, self.device, function)
        except NATIVE_ERRORS as error:
            raise BundleError(
                str(path), got=str(error)[:300], expected="a module of this bundle", fix="snakemake all"
            ) from error

    def zeros(self, shape: tuple[int, ...], dtype: str) -> rt.DeviceArray:
        """A zeroed array on the device."""
        return self.put(np.zeros(shape, _NUMPY[dtype]))

    @uninterrupted()
    def put(self, data: np.ndarray) -> rt.DeviceArray:
        """A copy on the device of a float32 or bfloat16 array."""
        raw = data.view(np.uint16) if data.dtype == ml_dtypes.bfloat16 else data
        view: Any = self.device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE,
            allowed_usage=rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
            device=self.device,
            buffer=raw,
            element_type=_ELEMENTS[data.dtype.name],
        )
        return rt.DeviceArray(self.device, view)


@uninterrupted()
def to_host(value: Value) -> np.ndarray:
    """A host copy that does not point into device memory."""
    return np.array(value.to_host() if isinstance(value, rt.DeviceArray) else value)


@dataclass
class Module:
    """A loaded program. ``check`` holds arguments against its signature before the native call."""

    program: Program
    arguments: Sequence[tuple[str, tuple[int, ...], str]]
    invoke: rt.FunctionInvoker
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A native context serves one call at a time."""

    def check(self, values: Sequence[Value]) -> None:
        """RequestError for a wrong count, kind, shape or dtype."""
        where = f"module {self.program.name}"
        if len(values) != len(self.arguments):
            raise RequestError(
                where,
                got=f"{len(values)} arguments",
                expected=f"{len(self.arguments)}",
                fix="pass the stage table's arguments, then the cache",
            )
        for value, (name, shape, dtype) in zip(values, self.arguments, strict=True):
            got = described(value)
            if got != f"{dtype} {list(shape)}":
                raise RequestError(
                    f"{where}, argument {name}",
                    got=got,
                    expected=f"{dtype} {list(shape)}",
                    fix="pad to the bucket's shape",
                )

    def __call__(self, *values: Value) -> list[rt.DeviceArray]:
        """Results in signature order, taps last. The values must have passed :meth:`check`."""
        try:
            with self.lock, uninterrupted():
                results: Any = self.invoke(*values)
        except NATIVE_ERRORS as error:
            raise RequestError(
                f"module {self.program.name}",
                got=str(error)[:300],
                expected="arguments that the module accepts",
                fix="pass plain numpy arrays, or results of this model's own stages",
            ) from error
        return [results] if isinstance(results, rt.DeviceArray) else list(results)


def described(value: object) -> str:
    """dtype and shape of an argument, the type's name of what is none."""
    if not isinstance(value, Value):
        return type(value).__name__
    return f"{np.dtype(value.dtype)} {list(value.shape)}"
