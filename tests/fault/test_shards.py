"""Checkpoints whose index or shards are damaged or disagree: refused by the file's or tensor's name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import ATT, FIRST, put_together, refused, taken_apart
from small_checkpoint import INDEX, small_tensors, write_index, write_shards

from molmo2_iree.build import convert as converting

# --- index ---------------------------------------------------------------------------------------------------------


def two_shards(folder: Path) -> dict[str, str]:
    arrays = small_tensors()
    names = list(arrays)
    halves = [{name: arrays[name] for name in names[k::2]} for k in (0, 1)]
    write_shards(folder, *halves)
    return json.loads((folder / INDEX).read_text())["weight_map"]


def test_an_index_entry_without_a_tensor_is_stale(tmp_path: Path) -> None:
    owner = two_shards(tmp_path / "c")
    write_index(tmp_path / "c", {**owner, "model.old.weight": "model-1.safetensors"})
    refusal = refused(tmp_path / "c", "got stored nowhere, expected in model-1.safetensors")
    assert refusal.where == f"{INDEX}, tensor model.old.weight"
    assert "stale" in refusal.fix


def test_a_tensor_without_an_index_entry_is_stale(tmp_path: Path) -> None:
    owner = two_shards(tmp_path / "c")
    del owner[ATT]
    write_index(tmp_path / "c", owner)
    refusal = refused(tmp_path / "c", "got stored in model-[12].safetensors, expected an entry of the index")
    assert refusal.where == f"{INDEX}, tensor {ATT}"


def test_an_index_that_names_another_shard_is_stale(tmp_path: Path) -> None:
    owner = two_shards(tmp_path / "c")
    other = {"model-1.safetensors": "model-2.safetensors", "model-2.safetensors": "model-1.safetensors"}
    write_index(tmp_path / "c", {**owner, ATT: other[owner[ATT]]})
    assert refused(tmp_path / "c", "as the index says").where == f"{INDEX}, tensor {ATT}"


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    two_shards(tmp_path / "c")
    (tmp_path / "c" / "model-2.safetensors").unlink()
    assert refused(tmp_path / "c", "unreadable safetensors file").where.endswith("model-2.safetensors")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "b"',
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
    ],
    ids=["empty", "list", "no map", "map a list", "number", "cut", "no text", "null", "deep"],
)
def test_an_index_that_is_no_index_is_refused(text: bytes, tmp_path: Path) -> None:
    two_shards(tmp_path / "c")
    (tmp_path / "c" / INDEX).write_bytes(text)
    assert INDEX in refused(tmp_path / "c", "no usable index").where


def test_a_shard_outside_the_folder_is_refused(tmp_path: Path) -> None:
    owner = two_shards(tmp_path / "c")
    (tmp_path / "c" / "model-2.safetensors").rename(tmp_path / "model-2.safetensors")
    write_index(tmp_path / "c", {n: s.replace("model-2", "../model-2") for n, s in owner.items()})
    assert INDEX in refused(tmp_path / "c", "as the index says").where


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    refused(tmp_path / "c", "got no weights")
    refused(tmp_path / "nowhere", "got no weights")


# --- bytes of a shard ----------------------------------------------------------------------------------------------


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def overlap(path: Path) -> None:
    header, data = taken_apart(path)
    first, second = (name for name in header if name in (FIRST, "model.transformer.ln_f.weight"))
    header[second]["data_offsets"] = header[first]["data_offsets"]
    put_together(path, json.dumps(header).encode(), data)


def twice(path: Path) -> None:
    header, data = taken_apart(path)
    text = json.dumps(header)
    entry = json.dumps({FIRST: header[FIRST]})[1:-1]
    put_together(path, f"{text[:-1]}, {entry}}}".encode(), data)


def offsets(path: Path, value: list[Any]) -> None:
    header, data = taken_apart(path)
    header[FIRST]["data_offsets"] = value
    put_together(path, json.dumps(header).encode(), data)


def resized(path: Path, change: int, length: int | None = None) -> None:
    header, data = taken_apart(path)
    data = data[:change] if change < 0 else data + bytes(change)
    put_together(path, json.dumps(header).encode(), data, length)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no byte": lambda path: cut(path, 0),
    "half a length": lambda path: cut(path, 5),
    "half a header": lambda path: cut(path, 500),
    "a length beyond the file": lambda path: resized(path, 0, 1 << 40),
    "a length of all ones": lambda path: resized(path, 0, (1 << 64) - 1),
    "a length of 0": lambda path: resized(path, 0, 0),
    "a short length": lambda path: resized(path, 0, 100),
    "overlapping offsets": overlap,
    "a name twice": twice,
    "offsets backwards": lambda path: offsets(path, [80, 0]),
    "offsets negative": lambda path: offsets(path, [-80, 0]),
    "offsets no numbers": lambda path: offsets(path, ["0", "80"]),
    "one offset": lambda path: offsets(path, [0]),
    "truncated data": lambda path: resized(path, -1),
    "half of the data": lambda path: cut(path, path.stat().st_size // 2),
    "bytes behind the data": lambda path: resized(path, 1),
    "no JSON": lambda path: put_together(path, b"\x93NUMPY", b""),
    "no object": lambda path: put_together(path, b"[1, 2]", b""),
    "a web page": lambda path: path.write_bytes(b"<!DOCTYPE html><html><body>Not found</body></html>"),
    "a pointer file": lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_shard_is_named(damage: Callable[[Path], object], tmp_path: Path) -> None:
    write_shards(tmp_path / "c", small_tensors())
    damage(tmp_path / "c" / "model.safetensors")
    refusal = refused(tmp_path / "c", "unreadable safetensors file")
    assert refusal.where == str(tmp_path / "c" / "model.safetensors")


def test_a_shard_that_shrinks_under_the_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "c", small_tensors())
    read = converting.read_headers

    def read_then_cut(path: Path) -> Any:
        found = read(path)
        cut(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size // 2 + 1)
        return found

    monkeypatch.setattr(converting, "read_headers", read_then_cut)
    assert "model.safetensors, tensor model." in refused(folder, "got the end of the file").where
