"""Compiling through the cache, and a compiled program that runs as JAX runs it."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
import pytest
from small_checkpoint import SMALL, small_architecture, small_tensors, write_shards
from stage_cases import Arrays, Checkpoint, junk_cache, write

from molmo2_iree.build import compile as compiling
from molmo2_iree.build.compile import compile_program
from molmo2_iree.build.convert import convert
from molmo2_iree.build.trace import trace
from molmo2_iree.config import Target
from molmo2_iree.errors import BuildError
from molmo2_iree.model.programs import Model
from molmo2_iree.stages import CacheLayout, parse_program

TARGET = Target(triple="x86_64-unknown-linux-gnu", cpu="x86-64-v3", gates_on="cpu")
PINNED = version("iree-base-compiler")
LAYOUT = CacheLayout(3, 48, "bfloat16")
PROGRAM = "decode-b2x32"
ADD = """module @add {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


class Folder:
    """A program, a cache and an output, and how often the compiler really ran."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = ADD) -> None:
        self.program, self.output, self.cache = folder / "add-s4.mlir", folder / "out/add.vmfb", folder / "cache"
        self.program.write_text(text, encoding="utf-8")
        self.runs = 0
        run = compiling.run_compiler

        def counted(*arguments: Any) -> None:
            self.runs += 1
            run(*arguments)

        monkeypatch.setattr(compiling, "run_compiler", counted)

    def compile(self, target: Target = TARGET) -> tuple[bool, int]:
        """(found in the cache, runs of the compiler)."""
        before = self.runs
        return compile_program(self.program, target, self.output, self.cache, PINNED), self.runs - before

    def entry(self, suffix: str) -> Path:
        return next(path for path in self.cache.iterdir() if path.suffix == suffix)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


# --- the cache -----------------------------------------------------------------------------------------------------


def test_a_module_is_compiled_once(folder: Folder) -> None:
    assert folder.compile() == (False, 1)
    first = folder.output.read_bytes()
    folder.output.unlink()
    assert folder.compile() == (True, 0)
    assert folder.output.read_bytes() == first
    assert sorted(path.suffix for path in folder.cache.iterdir()) == [".sha256", ".vmfb"]
    assert [path.name for path in folder.output.parent.iterdir()] == ["add.vmfb"]


def test_the_programs_name_and_place_do_not_matter(folder: Folder) -> None:
    folder.compile()
    folder.program = folder.program.rename(folder.program.with_name("sum-s4.mlir"))
    assert folder.compile() == (True, 0)


def test_other_text_or_flags_are_compiled(folder: Folder) -> None:
    folder.compile()
    other = TARGET.model_copy(update={"cpu": "znver3"})
    assert folder.compile(other) == (False, 1)
    assert folder.compile(TARGET.model_copy(update={"flags": ("--iree-opt-data-tiling=true",)})) == (False, 1)
    folder.program.write_text(ADD.replace("stablehlo.add", "stablehlo.multiply"), encoding="utf-8")
    assert folder.compile() == (False, 1)
    assert len(list(folder.cache.iterdir())) == 8


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Any] = {
    "module cut": (".vmfb", truncate),
    "module empty": (".vmfb", lambda path: path.write_bytes(b"")),
    "module flipped": (".vmfb", flip),
    "module gone": (".vmfb", Path.unlink),
    "digest cut": (".sha256", truncate),
    "digest empty": (".sha256", lambda path: path.write_bytes(b"")),
    "digest no text": (".sha256", lambda path: path.write_bytes(b"\xff" * 64)),
    "digest gone": (".sha256", Path.unlink),
}


@pytest.mark.parametrize(("suffix", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_compiled_anew(suffix: str, damage: Any, folder: Folder) -> None:
    folder.compile()
    first = folder.output.read_bytes()
    damage(folder.entry(suffix))
    assert folder.compile() == (False, 1)
    assert folder.output.read_bytes() == first
    assert folder.compile() == (True, 0)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("this is no program", "error: "),
        (ADD.replace("stablehlo.add", "stablehlo.ad"), "stablehlo.ad"),
        (ADD.replace("-> tensor<4xf32> {", "-> tensor<5xf32> {"), "tensor<4xf32>"),
        ("", "error|exit status"),
    ],
    ids=["words", "unknown operation", "other type", "nothing"],
)
def test_a_program_that_does_not_compile_is_refused_in_words(text: str, said: str, folder: Folder) -> None:
    folder.program.write_text(text, encoding="utf-8")
    with pytest.raises(BuildError, match=said) as refusal:
        folder.compile()
    assert refusal.value.where == "compiling add-s4.mlir"
    assert refusal.value.exit_code == 7
    assert "iree-compile" in refusal.value.fix
    assert not folder.output.exists()
    assert not list(folder.cache.iterdir())


def test_an_unknown_flag_is_refused_in_words(folder: Folder) -> None:
    with pytest.raises(BuildError, match="no-such-flag"):
        folder.compile(TARGET.model_copy(update={"flags": ("--no-such-flag",)}))
    assert not list(folder.cache.iterdir())


def test_another_compiler_than_the_pinned_one_is_refused(folder: Folder) -> None:
    with pytest.raises(BuildError, match=r"toolchain\.iree.*expected 3\.12\.0"):
        compile_program(folder.program, TARGET, folder.output, folder.cache, "3.12.0")
    assert not folder.output.exists()
    assert not folder.cache.exists()


# --- a compiled stage ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text() -> str:
    return trace(Model(small_architecture(), LAYOUT, "bfloat16", False), parse_program(PROGRAM))


@pytest.fixture(scope="module")
def module(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("module")
    (folder / f"{PROGRAM}.mlir").write_text(text, encoding="utf-8")
    compile_program(folder / f"{PROGRAM}.mlir", TARGET, folder / f"{PROGRAM}.vmfb", folder / "cache", PINNED)
    return folder / f"{PROGRAM}.vmfb"


def test_another_folder_gives_the_same_bytes(text: str, module: Path, tmp_path: Path) -> None:
    program = tmp_path / "elsewhere" / "x.mlir"
    program.parent.mkdir()
    program.write_text(text, encoding="utf-8")
    compile_program(program, TARGET, tmp_path / "x.vmfb", tmp_path / "other-cache", PINNED)
    assert (tmp_path / "x.vmfb").read_bytes() == module.read_bytes()
    assert str(module.parent).encode() not in module.read_bytes()


def run_module(module: Path, archive: Path, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The module's results; bfloat16 arrays go in and come out by their bits."""
    instance, device = rt.VmInstance(), rt.get_device("local-sync")
    index = rt.ParameterIndex()
    index.load(str(archive))
    parameters = rt.create_io_parameters_module(instance, index.create_provider(scope="text"))
    loaded = rt.VmModule.mmap(instance, str(module))
    context = rt.VmContext(instance, modules=[parameters, rt.create_hal_module(instance, device), loaded])
    function = loaded.lookup_function("main")
    assert function is not None
    invoke = rt.FunctionInvoker(context, device, function)
    results: Any = invoke(*(on_device(device, array) for array in arguments))
    return [np.array(result.to_host()) for result in results]


def on_device(device: Any, array: np.ndarray) -> rt.DeviceArray:
    narrow = array.dtype == ml_dtypes.bfloat16
    kinds = {"float32": rt.HalElementType.FLOAT_32, "int32": rt.HalElementType.INT_32}
    view = device.allocator.allocate_buffer_copy(
        memory_type=rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE,
        allowed_usage=rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
        device=device,
        buffer=array.view(np.uint16) if narrow else array,
        element_type=rt.HalElementType.BFLOAT_16 if narrow else kinds[str(array.dtype)],
    )
    return rt.DeviceArray(device, view)


def test_a_compiled_decode_step_is_jaxs(module: Path, tmp_path: Path) -> None:
    """bfloat16 matrices and cache: two slots at their own positions, the third one not part of the batch."""
    checkpoint: Checkpoint = write(tmp_path / "checkpoint", SMALL, storage="bfloat16")
    write_shards(tmp_path / "again", small_tensors())
    convert(tmp_path / "again", checkpoint.architecture, "bfloat16", tmp_path / "archives", lambda _: None)
    cache = [(array.astype(np.float32) / 1e4).astype(ml_dtypes.bfloat16) for array in junk_cache(checkpoint, LAYOUT)]
    ids, positions, active = np.array([[72, 101], [4, 31], [1, 1]], np.int32)
    wanted: Arrays = checkpoint.run(PROGRAM, ids, positions, active, *cache, cache=LAYOUT)
    got = run_module(module, tmp_path / "archives/text.irpa", [ids, positions, active, *cache])
    assert [array.shape for array in got] == [array.shape for array in wanted.values()]
    expected = list(wanted.values())
    np.testing.assert_allclose(got[0], expected[0], atol=2e-4 * float(np.abs(expected[0]).max()), rtol=0)
    for before, ours, theirs in zip(cache, got[1:], expected[1:], strict=True):
        assert str(ours.dtype) == "bfloat16"
        ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        np.testing.assert_allclose(ours, theirs, atol=0.01, rtol=0.01)
        changed = ours != before.astype(np.float32)
        assert 0 < np.count_nonzero(changed) <= 2 * 2 * 16
        assert not changed[2].any()


def test_a_module_needs_its_parameters(module: Path, tmp_path: Path) -> None:
    """An archive without a tensor is refused when the module is bound, not when it is called."""
    one = replace(SMALL, text_layers=1)
    write_shards(tmp_path / "c", small_tensors(one))
    convert(tmp_path / "c", small_architecture(one), "bfloat16", tmp_path / "out", lambda _: None)
    with pytest.raises(ValueError, match=r"layers\.1\."):
        run_module(module, tmp_path / "out/text.irpa", [])
