"""The native side: one device, one mapping of each archive, modules loaded when first called."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np

from molmo2_iree.errors import BundleError, RequestError
from molmo2_iree.manifest import Archive
from molmo2_iree.stages import STAGES, Program

ENTRY = "main"

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
            index = rt.ParameterIndex()
            index.load(str(folder / archive.file))
            missing = sorted(archive.tensors.keys() - {key for key, _ in index.items()})
            if missing:
                raise BundleError(
                    f"{folder / archive.file}, tensor {missing[0]}",
                    got="not in the archive",
                    expected="every tensor of the manifest",
                    fix="snakemake all",
                )
            self._parameters[name] = rt.create_io_parameters_module(self.instance, index.create_provider(scope=name))

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
        except (ValueError, RuntimeError, KeyError) as error:
            raise BundleError(
                str(path), got=str(error)[:300], expected="a module of this bundle", fix="snakemake all"
            ) from error

    def zeros(self, shape: tuple[int, ...], dtype: str) -> rt.DeviceArray:
        """A zeroed array on the device."""
        data = np.zeros(shape, _NUMPY[dtype])
        raw = data.view(np.uint16) if dtype == "bfloat16" else data
        view: Any = self.device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE,
            allowed_usage=rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
            device=self.device,
            buffer=raw,
            element_type=_ELEMENTS[dtype],
        )
        return rt.DeviceArray(self.device, view)


def to_host(value: Value) -> np.ndarray:
    """A host copy that does not point into device memory."""
    return np.array(value.to_host() if isinstance(value, rt.DeviceArray) else value)


@dataclass
class Module:
    """A loaded program. ``check`` holds arguments against its signature before the native call."""

    program: Program
    arguments: Sequence[tuple[str, tuple[int, ...], str]]
    invoke: rt.FunctionInvoker

    def check(self, values: Sequence[Value]) -> None:
        """RequestError for a wrong count, shape or dtype."""
        where = f"module {self.program.name}"
        if len(values) != len(self.arguments):
            raise RequestError(
                where,
                got=f"{len(values)} arguments",
                expected=f"{len(self.arguments)}",
                fix="pass the stage table's arguments, then the cache",
            )
        for value, (name, shape, dtype) in zip(values, self.arguments, strict=True):
            got = (tuple(value.shape), str(np.dtype(value.dtype)))
            if got != (shape, dtype):
                raise RequestError(
                    f"{where}, argument {name}",
                    got=f"{got[1]} {list(got[0])}",
                    expected=f"{dtype} {list(shape)}",
                    fix="pad to the bucket's shape",
                )

    def __call__(self, *values: Value) -> list[rt.DeviceArray]:
        """Results in signature order, taps last. The values must have passed :meth:`check`."""
        results: Any = self.invoke(*values)
        return [results] if isinstance(results, rt.DeviceArray) else list(results)
