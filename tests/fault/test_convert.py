"""Checkpoints that must not be converted: each is refused by the tensor's or file's name and leaves no file behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from refusals import ATT, FIRST, WTE, put_together, quiet, refused, taken_apart
from small_checkpoint import small_architecture, small_tensors, write_shards

from molmo2_iree.build.convert import convert

Arrays = dict[str, np.ndarray]
BLOCK = "model.vision_backbone.image_vit.transformer.resblocks"
LAST = "model.vision_backbone.image_projector.w3.weight"


def dropped(arrays: Arrays, *names: str) -> Arrays:
    return {name: array for name, array in arrays.items() if name not in names}


# --- names, shapes, dtypes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [WTE, FIRST, ATT, LAST, "lm_head.weight", f"{BLOCK}.2.ffn_norm.bias"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "c", dropped(small_tensors(), name))
    assert refused(tmp_path / "c", "not in the checkpoint").where == f"tensor {name}"


@pytest.mark.parametrize(
    "name",
    [
        "model.transformer.blocks.2.attn_norm.weight",
        "model.transformer.wte.embedding.weight",
        "model.vision_backbone.image_vit.class_embedding",
        f"{BLOCK}.1.attention.wq.scale",
        f"{BLOCK}.5.attention.wq.weight",
        f"x.{BLOCK}.4.attention.wq.weight",
        "text_model.embed_tokens.weight",
        "",
    ],
)
def test_an_unknown_tensor_is_named(name: str, tmp_path: Path) -> None:
    """Blocks 3 and 4 of 5 would be declared and unused, 5 is not declared."""
    write_shards(tmp_path / "c", {**small_tensors(), name: np.zeros(3, np.float32)})
    assert refused(tmp_path / "c", "unknown tensor in model.safetensors").where == f"tensor {name}"


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    arrays = small_tensors()
    write_shards(tmp_path / "c", arrays, {WTE: arrays[WTE], "x": np.zeros(1, np.float32)})
    refusal = refused(tmp_path / "c", "stored in model-1.safetensors and in model-2.safetensors")
    assert refusal.where == f"tensor {WTE}"


@pytest.mark.parametrize(
    "change",
    [lambda a: a.T, lambda a: a[:-1], lambda a: a.reshape(-1), lambda a: a[None], lambda a: a[:0], lambda a: a[0, 0]],
    ids=["transposed", "a row less", "flat", "an axis more", "empty", "scalar"],
)
def test_a_misshaped_tensor_is_named(change: Callable[[np.ndarray], np.ndarray], tmp_path: Path) -> None:
    arrays = small_tensors()
    write_shards(tmp_path / "c", {**arrays, ATT: np.ascontiguousarray(change(arrays[ATT]))})
    assert refused(tmp_path / "c", r"expected \(128, 20\) as config.json says").where == f"tensor {ATT}"


@pytest.mark.parametrize(
    ("dtype", "named"),
    [
        (np.int64, "I64"),
        (np.int32, "I32"),
        (np.float64, "F64"),
        (np.uint8, "U8"),
        (np.bool_, "BOOL"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3"),
        (ml_dtypes.float8_e5m2, "F8_E5M2"),
    ],
)
def test_a_dtype_that_is_not_a_float_of_the_table_is_named(dtype: Any, named: str, tmp_path: Path) -> None:
    arrays = small_tensors()
    folder = write_shards(tmp_path / "c", dropped(arrays, ATT))
    add_raw(folder / "model.safetensors", ATT, named, arrays[ATT].astype(dtype))
    refusal = refused(folder, f"dtype {named}, expected F32 or BF16 or F16")
    assert refusal.where == f"tensor {ATT}"


def add_raw(path: Path, name: str, dtype: str, array: np.ndarray) -> None:
    """Append a tensor to a shard under a dtype that the library's own writer may not know."""
    header, data = taken_apart(path)
    end = len(data)
    header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
    put_together(path, json.dumps(header).encode(), data + array.tobytes())


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [FIRST, WTE, LAST])
def test_a_value_that_is_not_finite_is_named_with_its_place(name: str, value: float, tmp_path: Path) -> None:
    arrays = small_tensors()
    arrays[name].reshape(-1)[7] = value
    write_shards(tmp_path / "c", arrays)
    assert refused(tmp_path / "c", f"got {value} in the checkpoint").where == f"tensor {name}, element 7"


def test_the_place_counts_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molmo2_iree.build.tensors.PART", 100)
    arrays = small_tensors()
    arrays[WTE].reshape(-1)[1234] = np.nan
    write_shards(tmp_path / "c", arrays)
    assert refused(tmp_path / "c", "nan in the checkpoint").where == f"tensor {WTE}, element 1234"


def test_infinities_that_cancel_are_found(tmp_path: Path) -> None:
    arrays = small_tensors()
    arrays[WTE].reshape(-1)[[3, 9]] = np.inf, -np.inf
    write_shards(tmp_path / "c", arrays)
    assert refused(tmp_path / "c", "got inf in the checkpoint").where == f"tensor {WTE}, element 3"


def test_large_finite_values_are_no_infinity(tmp_path: Path) -> None:
    """Their float32 sum is infinite, they are not."""
    arrays = small_tensors()
    arrays[WTE][:] = 3e38
    write_shards(tmp_path / "c", arrays)
    convert(tmp_path / "c", small_architecture(), "bfloat16", tmp_path / "out", quiet)


@pytest.mark.filterwarnings("error")
def test_overflow_of_the_storage_dtype_is_named(tmp_path: Path) -> None:
    """3.4e38 is finite in float32 and rounds to infinity in bfloat16; a vector stays float32 and may hold it."""
    arrays = small_tensors()
    arrays[WTE].reshape(-1)[5] = arrays[FIRST][0] = 3.4e38
    write_shards(tmp_path / "c", arrays)
    convert(tmp_path / "c", small_architecture(), "float32", tmp_path / "out", quiet)
    refusal = refused(tmp_path / "c", "got inf after conversion to bfloat16", "bfloat16")
    assert refusal.where == f"tensor {WTE}, element 5"


# --- what is left behind -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["^C", "full disk"]
)
@pytest.mark.parametrize("calls", [0, 20, 60])
def test_an_interrupted_conversion_leaves_no_file(failure: Any, calls: int, tmp_path: Path) -> None:
    write_shards(tmp_path / "c", small_tensors())
    seen = 0

    def stop(_: int) -> None:
        nonlocal seen
        seen += 1
        if seen > calls:
            raise failure

    with pytest.raises((KeyboardInterrupt, OSError)):
        convert(tmp_path / "c", small_architecture(), "float32", tmp_path / "out", stop)
    assert not list((tmp_path / "out").iterdir())


def test_an_index_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path / "c", small_tensors())

    def half(path: Path, text: str, **_: Any) -> int:
        path.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space"):
        convert(tmp_path / "c", small_architecture(), "float32", tmp_path / "out", quiet)
    assert not list((tmp_path / "out").iterdir())
