"""kill -9 in the middle of a step, everything it started included; then a plain rerun of the same command finishes."""

import json
from pathlib import Path

import numpy as np
from workspace import ONE_OF_EACH, Workspace

from molmo2_iree.build.embedded import write_checkpoint
from molmo2_iree.build.embedded_config import Variant, json_files
from molmo2_iree.build.embedded_tensors import safetensors_bytes, shapes


def test_in_the_middle_of_compile(tmp_path: Path) -> None:
    workspace = Workspace.copied(tmp_path / "checkout")
    workspace.configure(ONE_OF_EACH)
    path = workspace.plan("module_path('cpu', plan.program('vision-c9'))")
    started = workspace.start("snakemake", path)
    started.kill_when(lambda: started.runs("iree-compile"))
    assert not (workspace.folder / path).exists()
    assert workspace.files("cache/modules/*.vmfb") == []

    assert workspace.jobs(path) == {"compile": 1}
    workspace.build(path)
    assert (workspace.folder / path).stat().st_size > 1000
    assert workspace.jobs(path) == {}


def test_in_the_middle_of_convert(tmp_path: Path) -> None:
    workspace = Workspace.copied(tmp_path / "checkout")
    workspace.configure(ONE_OF_EACH)
    write_heavy(tmp_path / "heavy")
    locked = workspace.molmo2("lock", "--from", str(tmp_path / "heavy"), "--mask-policy", "bidirectional")
    assert locked.returncode == 0, locked.stdout
    workspace.configure({"checkpoint": "config/locks/heavy.yaml"})
    folder = Path(workspace.plan("weights_folder"))
    archives = [str(folder / name) for name in ("vision.irpa", "text.irpa", "weights.json")]
    half = workspace.folder / folder / ".text.irpa.tmp"
    workspace.start("snakemake", *archives).kill_when(half.exists)
    assert half.exists()
    assert not any((workspace.folder / path).exists() for path in archives)

    assert workspace.jobs(*archives) == {"convert": 1}
    workspace.build(*archives)
    assert not half.exists()
    index = json.loads((workspace.folder / folder / "weights.json").read_bytes())
    for name, entry in index["archives"].items():
        assert (workspace.folder / folder / f"{name}.irpa").stat().st_size == entry["size"]
    assert workspace.jobs(*archives) == {}


def write_heavy(folder: Path) -> None:
    """The embedded checkpoint with MLPs so wide that writing its archive takes a while: 220 MB."""
    variant = Variant(text_intermediate=57_344, shards=1)
    write_checkpoint(folder, variant=Variant(shards=1))
    (folder / "config.json").write_text(json.dumps(json_files(variant)["config.json"]), encoding="utf-8")
    values = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes(variant).items()}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(values))
