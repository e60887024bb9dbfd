"""The runtime where nothing else is installed: no jax, no compiler, no torch, and the same answer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from asking import PATIENCE, QUESTION, ROOT, spoken
from runtime_requests import CAT, pictured

from molmo2_iree.runtime.model import Model

BUILDING = ("iree-base-compiler", "jax", "jaxlib", "safetensors", "snakemake", "torch", "transformers")
FOREIGN = (
    "huggingface_hub",
    "iree.compiler",
    "jax",
    "jaxlib",
    "llguidance",
    "safetensors",
    "snakemake",
    "torch",
    "transformers",
)
OTHER_SIDE = ("molmo2_iree.build", "molmo2_iree.model", "molmo2_iree.parity")

WHOLE_LINE = """
import json, sys
from pathlib import Path
from molmo2_iree.preprocess.prompt import messages_for
from molmo2_iree.runtime.delivery import answer
from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.generate import generate
from molmo2_iree.runtime.model import load
model = load(sys.argv[1])
payload = model.prepare(messages_for("Hi", 1), [Path(sys.argv[2])])
model.extend(list(generate(model, payload, 3)), len(payload.ids), model.new_cache())
with Engine(model) as engine:
    list(answer(engine, engine.request(payload, 3)))
print(json.dumps(sorted(sys.modules)))
"""


class Alone:
    """An environment with the runtime's own requirements, at the pinned versions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "environment"
        project = folder / "project"
        shutil.copytree(ROOT / "src", project / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, project)
        subprocess.run([sys.executable, "-m", "venv", self.folder], check=True, timeout=PATIENCE)
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt", str(project))

    def run(self, program: str, *arguments: str) -> str:
        """Standard output of a program of this environment, run in the checkout's root."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=ROOT,
            env=clean,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))


def test_what_is_installed(alone: Alone) -> None:
    listed = json.loads(alone.run("pip", "list", "--format", "json", "--disable-pip-version-check"))
    installed = {entry["name"].lower().replace("_", "-") for entry in listed}
    assert "iree-base-runtime" in installed
    assert not installed & set(BUILDING)
    assert str(alone.folder) in alone.run("python", "-c", "import molmo2_iree; print(molmo2_iree.__file__)")


def test_the_same_answer(alone: Alone, model: Model, bundle_folder: Path) -> None:
    wanted = spoken(model, pictured(model, [CAT], QUESTION), 12)
    asked = ("--image", str(CAT), QUESTION, "--max-tokens", "12")
    assert alone.run("molmo2", "ask", "--bundle", str(bundle_folder), *asked) == wanted
    assert alone.run("molmo2", "ask", *asked) == wanted  # the plan names the bundle without a compiler, too


def test_the_whole_line_imports_nothing_else(alone: Alone, bundle_folder: Path) -> None:
    loaded = json.loads(alone.run("python", "-c", WHOLE_LINE, str(bundle_folder), str(CAT)))
    assert "iree.runtime" in loaded
    assert not set(loaded) & set(FOREIGN)
    assert not [
        name for name in loaded if name.startswith(("molmo2_iree.build", "molmo2_iree.model", "molmo2_iree.parity"))
    ]


def test_what_users_run_has_its_help(alone: Alone) -> None:
    for verb in ("ask", "chat", "inspect", "lock", "fetch"):
        assert f"molmo2 {verb}" in alone.run("molmo2", verb, "--help")
