"""Module files that are none, or of another kind: refused in words by the native side, never run."""

from pathlib import Path

import numpy as np
import pytest

from molmo2_iree.build.plan import Plan
from molmo2_iree.errors import BundleError, RequestError
from molmo2_iree.runtime.model import Model, load
from molmo2_iree.stages import Program

MERGE = Program("merge", (128,))


@pytest.fixture
def fresh(bundle_folder: Path) -> Model:
    """A model whose modules a test may replace."""
    return load(bundle_folder)


def good(bundle_folder: Path, name: str = "merge-s128") -> bytes:
    return (bundle_folder / "modules" / f"{name}.vmfb").read_bytes()


def test_files_that_are_no_module(fresh: Model, bundle_folder: Path, tmp_path: Path) -> None:
    whole = good(bundle_folder)
    contents = [b"", b"x", b"text\n" * 200, bytes(4096), whole[: len(whole) // 2], whole[::-1]]
    for content in contents:
        path = tmp_path / "merge-s128.vmfb"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        with pytest.raises(BundleError, match=r"merge-s128\.vmfb"):
            fresh.add_module(MERGE, path)
    for path in (tmp_path, tmp_path / "nowhere.vmfb"):
        with pytest.raises(BundleError, match=path.name):
            fresh.add_module(MERGE, path)
    assert not fresh.modules


def test_a_module_for_another_machine(fresh: Model, default_plan: Plan) -> None:
    path = default_plan.bundle_folder("cpu-arm64") / "modules" / "merge-s128.vmfb"
    with pytest.raises(BundleError, match=r"merge-s128\.vmfb.*not found or unavailable"):
        fresh.add_module(MERGE, path)


def test_a_module_of_another_archive(fresh: Model, bundle_folder: Path) -> None:
    with pytest.raises(BundleError, match=r"vision-c3\.vmfb.*no provider registered"):
        fresh.add_module(MERGE, bundle_folder / "modules" / "vision-c3.vmfb")


def test_a_module_of_another_signature_refuses_its_arguments(fresh: Model, bundle_folder: Path) -> None:
    fresh.add_module(MERGE, bundle_folder / "modules" / "merge-s256.vmfb")
    width = fresh.architecture.text.width
    arguments = {"ids": np.zeros(128, np.int32), "image_tokens": np.zeros((128, width), np.float32), "count": 0}
    with pytest.raises(RequestError, match=r"module merge-s128: got .*shape"):
        fresh.call(MERGE, arguments)
