"""Fixtures: the checkout, plans, and the bundles that ``make test`` built before the tests.

``plan``, ``bundle_folder`` and ``model`` are the miniature with random weights of the 4B's kind, which has every
bucket; ``default_plan`` is the configuration that users get, and in ``e2e`` the three names stand for it.
"""

import os
from pathlib import Path

import pytest

from molmo2_iree.build.plan import Plan, make_plan
from molmo2_iree.config import read_config
from molmo2_iree.manifest import MANIFEST
from molmo2_iree.runtime.model import Model, load

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _from_the_root() -> None:
    """Paths of a plan are relative to the project's root."""
    os.chdir(ROOT)


def built(plan: Plan) -> Path:
    """The bundle of target cpu, which must be there."""
    folder = plan.bundle_folder("cpu")
    assert (folder / MANIFEST).is_file(), "no bundle: make test builds it first"
    return ROOT / folder


@pytest.fixture(scope="session")
def plan(_from_the_root: None) -> Plan:
    """The plan of the random miniature."""
    return make_plan(read_config(Path("config/family-qwen.yaml")))


@pytest.fixture(scope="session")
def default_plan(_from_the_root: None) -> Plan:
    """The plan of the default configuration."""
    return make_plan(read_config(Path("config/default.yaml")))


@pytest.fixture(scope="session")
def bundle_folder(plan: Plan) -> Path:
    """The built bundle of target cpu."""
    return built(plan)


@pytest.fixture(scope="session")
def model(bundle_folder: Path) -> Model:
    """The bundle, loaded once."""
    return load(bundle_folder)
