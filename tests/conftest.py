"""Fixtures: the checkout, its plan, and the bundle that ``snakemake all`` built (``make test`` builds it first)."""

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


@pytest.fixture(scope="session")
def plan(_from_the_root: None) -> Plan:
    """The plan of the embedded default."""
    return make_plan(read_config(Path("config/default.yaml")))


@pytest.fixture(scope="session")
def bundle_folder(plan: Plan) -> Path:
    """The built bundle of target cpu."""
    folder = plan.bundle_folder("cpu")
    assert (folder / MANIFEST).is_file(), "no bundle: run snakemake all first (make test does)"
    return ROOT / folder


@pytest.fixture(scope="session")
def model(bundle_folder: Path) -> Model:
    """The bundle, loaded once."""
    return load(bundle_folder)
