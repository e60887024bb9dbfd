"""The archive writer against the reader that the runtime uses, iree.runtime's own."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molmo2_iree.build.archive import layout, write_archive
from molmo2_iree.identity import file_sha256

Tensors = list[tuple[str, np.ndarray]]

ODD: Tensors = [
    ("one.byte", np.array([7], np.uint8)),
    ("layers.0.norm", np.arange(63, dtype=np.uint8)),
    ("exactly.aligned", np.arange(16, dtype=np.float32)),
    ("just.over", np.arange(65, dtype=np.uint8)),
    ("matrix", np.arange(35, dtype=np.float32).reshape(5, 7)),
    ("halves", np.arange(3, dtype=np.uint16)),
    ("größe", np.arange(5, dtype=np.int32)),
]


def sizes(tensors: Tensors) -> list[tuple[str, int]]:
    return [(name, array.nbytes) for name, array in tensors]


def read_back(path: Path) -> dict[str, tuple[int, bytes]]:
    """(offset, content) of every parameter, in the file's order."""
    index = rt.ParameterIndex()
    index.load(str(path))
    found = {}
    for name, entry in index.items():
        assert entry.is_file
        _, offset = entry.file_storage
        content = bytes(entry.file_view)
        assert entry.length == len(content)
        found[name] = (offset, content)
    return found


def check(path: Path, tensors: Tensors) -> None:
    found = read_back(path)
    assert list(found) == [name for name, _ in tensors]
    whole = path.read_bytes()
    for name, array in tensors:
        offset, content = found[name]
        assert content == array.tobytes() == whole[offset : offset + array.nbytes], name
        assert offset % 64 == 0, name


def test_the_runtime_reads_odd_sizes(tmp_path: Path) -> None:
    path = tmp_path / "odd.irpa"
    written = write_archive(path, sizes(ODD), ODD)
    check(path, ODD)
    assert written.size == path.stat().st_size
    assert written.sha256 == file_sha256(path)
    assert written.tensors == {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in ODD}


def test_offsets_by_hand() -> None:
    """Data starts on a page; 7 bytes, then 260 at the next multiple of 64, then 6."""
    header, slots, size = layout([("a", 7), ("b", 260), ("c", 6)])
    assert len(header) == 4096
    assert [(slot.offset, slot.length) for slot in slots] == [(4096, 7), (4160, 260), (4480, 6)]
    assert size == 4544


def test_names_beyond_one_page_move_the_data(tmp_path: Path) -> None:
    tensors: Tensors = [(f"layers.{i}.{'x' * 90}", np.full(i % 5 + 1, i, np.uint8)) for i in range(200)]
    path = tmp_path / "many.irpa"
    write_archive(path, sizes(tensors), tensors)
    check(path, tensors)
    assert min(offset for offset, _ in read_back(path).values()) % 4096 == 0


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_archive(tmp_path / name, sizes(ODD), ODD)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 64))
def test_any_sizes_in_any_parts(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], part: int) -> None:
    generator = np.random.default_rng(len(lengths) * 1000 + part)
    tensors: Tensors = [(f"t.{i}", generator.integers(0, 256, n).astype(np.uint8)) for i, n in enumerate(lengths)]

    def parts() -> Iterator[tuple[str, np.ndarray]]:
        for name, array in tensors:
            for at in range(0, len(array), part):
                yield name, array[at : at + part]

    path = tmp_path_factory.mktemp("archive") / "a.irpa"
    written = write_archive(path, sizes(tensors), parts())
    check(path, tensors)
    assert written.sha256 == file_sha256(path)
    assert written.tensors == {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in tensors}


def test_a_part_may_be_a_view_with_strides(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    write_archive(tmp_path / "a.irpa", [("a", 48)], [("a", whole[:, ::2])])
    assert read_back(tmp_path / "a.irpa")["a"][1] == whole[:, ::2].tobytes()


FOUR = np.zeros(4, np.uint8)
PROMISED = [("a", 4), ("b", 4)]
WRONG = {
    "other order": [("b", FOUR), ("a", FOUR)],
    "too short": [("a", FOUR[:3]), ("b", FOUR)],
    "too long": [("a", np.zeros(5, np.uint8)), ("b", FOUR)],
    "last one missing": [("a", FOUR)],
    "last one short": [("a", FOUR), ("b", FOUR[:2])],
    "unknown": [("a", FOUR), ("c", FOUR)],
    "nothing": [],
    "an empty part": [("a", FOUR), ("b", FOUR[:0]), ("b", FOUR)],
    "one too many": [("a", FOUR), ("b", FOUR), ("c", FOUR)],
    "more of the last": [("a", FOUR), ("b", FOUR), ("b", FOUR)],
}


@pytest.mark.parametrize("parts", WRONG.values(), ids=WRONG)
def test_parts_that_do_not_add_up_are_refused(parts: Tensors, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.irpa, .*bytes"):
        write_archive(tmp_path / "a.irpa", PROMISED, parts)
