"""End to end is what users get: the default configuration."""

from pathlib import Path

import pytest

from molmo2_iree.build.plan import Plan
from molmo2_iree.manifest import MANIFEST
from molmo2_iree.runtime.model import Model, load


@pytest.fixture(scope="session")
def plan(default_plan: Plan) -> Plan:
    """The plan of the default configuration."""
    return default_plan


@pytest.fixture(scope="session")
def bundle_folder(plan: Plan) -> Path:
    """Its bundle of target cpu."""
    folder = plan.bundle_folder("cpu")
    assert (folder / MANIFEST).is_file(), "no bundle: make test builds it first"
    return folder.resolve()


@pytest.fixture(scope="session")
def model(bundle_folder: Path) -> Model:
    """The bundle, loaded once."""
    return load(bundle_folder)
