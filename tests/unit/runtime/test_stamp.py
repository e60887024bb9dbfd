"""The stamp that spares a second hashing of the archives: it never vouches for a file that was touched since."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from bundle_copies import copy_bundle, edit_manifest, flip, put_file

from molmo2_iree.errors import BundleError
from molmo2_iree.runtime import bundle as opening
from molmo2_iree.runtime.bundle import STAMP, open_bundle

BOTH = ["text.irpa", "vision.irpa"]


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    return copy_bundle(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of archives as they are hashed."""
    names: list[str] = []
    real = opening.file_sha256

    def counted(path: Path) -> str:
        names.extend([path.name] if path.suffix == ".irpa" else [])
        return real(path)

    monkeypatch.setattr(opening, "file_sha256", counted)
    return names


def opened(copy: Path, hashed: list[str], verify_all: bool = False) -> list[str]:
    hashed.clear()
    open_bundle(copy, verify_all=verify_all)
    return sorted(hashed)


def test_archives_are_hashed_once(copy: Path, hashed: list[str]) -> None:
    assert opened(copy, hashed) == BOTH
    assert opened(copy, hashed) == []
    assert opened(copy, hashed, verify_all=True) == BOTH


def test_a_changed_archive_is_hashed_whatever_its_time_says(copy: Path) -> None:
    open_bundle(copy)
    path = copy / "weights/text.irpa"
    before = path.stat()
    flip(path, 5000, 1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(BundleError, match=r"text\.irpa"):
        open_bundle(copy)


def test_a_replaced_archive_is_hashed(copy: Path, hashed: list[str]) -> None:
    open_bundle(copy)
    path = copy / "weights/vision.irpa"
    shutil.copy2(path, copy / "other")
    (copy / "other").replace(path)
    assert opened(copy, hashed) == BOTH


def test_a_stamp_does_not_travel(copy: Path, hashed: list[str], tmp_path: Path) -> None:
    open_bundle(copy)
    shutil.copytree(copy, tmp_path / "second")
    assert (tmp_path / "second" / STAMP).is_file()
    assert opened(tmp_path / "second", hashed) == BOTH


def test_a_stamp_for_another_content_does_not_count(copy: Path, hashed: list[str]) -> None:
    open_bundle(copy)
    put_file(copy, "archives", "text", (copy / "weights/text.irpa").read_bytes() + bytes(64))
    assert opened(copy, hashed) == BOTH
    edit_manifest(copy, lambda fields: fields["archives"]["text"].update(sha256="0" * 64))
    with pytest.raises(BundleError, match=r"text\.irpa"):
        open_bundle(copy)


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"\xff", b'{"text": 1}'], ids=str)
def test_a_stamp_that_is_none(copy: Path, hashed: list[str], content: bytes) -> None:
    (copy / STAMP).write_bytes(content)
    assert opened(copy, hashed) == BOTH
    assert opened(copy, hashed) == []


def test_a_bundle_that_cannot_be_written_is_hashed_every_time(
    copy: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, _: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(opening, "write_whole", read_only)
    assert opened(copy, hashed) == BOTH
    assert opened(copy, hashed) == BOTH
    assert not (copy / STAMP).exists()
