"""A tiny training from end to end: two steps of each stage, the export, and what reads it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from molmo2_iree.build.embedded_config import Variant
from molmo2_iree.detect import read_architecture
from molmo2_iree.parity.native import load
from training.batches import make_talks, patch_targets, sizes, targets
from training.evaluate import write
from training.export import export
from training.native import answer_all
from training.shape import architecture, host
from training.train import STAGES, Run, new_run, one_step, restore, save, train
from training.world import Scene, Thing

TINY = Variant(
    vit_width=16,
    vit_heads=1,
    vit_intermediate=16,
    vit_blocks=3,
    vit_layers=(-2, -3),
    patch_size=12,
    adapter_intermediate=16,
    max_crops=4,
    text_width=16,
    text_layers=1,
    heads=2,
    kv_heads=1,
    text_intermediate=16,
    rope_theta=1e4,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Two small steps of every stage, and where the state lies."""
    state = tmp_path_factory.mktemp("state") / "state.pt"
    run = new_run(TINY, seed=1)
    stages = [stage.shortened(0) for stage in STAGES]
    assert {stage.steps for stage in stages} == {1}
    assert train(run, [*stages, stages[-1]], 1, state, TINY)
    return run, state


def test_the_export_is_read_by_everything(trained: tuple[Run, Path], tmp_path: Path) -> None:
    run, state = trained
    digest = export(run.model.state_dict(), tmp_path, TINY)
    assert digest == export(restore(state, TINY).model.state_dict(), tmp_path / "again", TINY)
    files = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*config.json")}
    assert read_architecture(files) == architecture(TINY)
    model = load(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, run.model.state_dict()[name].half().float()), name
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    requests = [json.loads(line) for line in write(tmp_path / "held", 3, 1).read_text().splitlines()]
    assert all(isinstance(answer, str) for answer in answer_all(tmp_path, requests, tmp_path / "held"))


def test_training_is_the_same_twice(tmp_path: Path) -> None:
    runs = [(new_run(TINY, seed=2), make_talks(TINY, (2, 0), 4)) for _ in range(2)]
    seen = [[one_step(run, STAGES[-1], batch)["answers"] for _ in range(2)] for run, batch in runs]
    run, batch = runs[-1]
    assert seen[0] == seen[1]
    save(run, tmp_path / "state.pt")
    again = restore(tmp_path / "state.pt", TINY)
    assert one_step(again, STAGES[-1], batch) == one_step(run, STAGES[-1], batch)


def test_a_packed_turn_sees_what_it_sees_when_asked_alone() -> None:
    """Every turn but those of a talk: its ids and positions are the prompt's own, and nothing of its neighbours."""
    batch = make_talks(TINY, (4, 1), 4)
    assert batch.pictures is not None
    tokenizer = host(TINY).tokenizer
    user = tokenizer.token_id("<|im_start|>")
    starts = [k for k, number in enumerate(batch.ids[0]) if number == user]
    first, second, third = starts[0], starts[2], starts[4]
    assert list(batch.positions[0, first:second]) == list(range(first, second))
    assert list(batch.positions[0, second:third]) == list(range(first, first + third - second))
    seen = batch.visible[0, 0, third - 1]
    assert seen[:first].all()
    assert not seen[first:second].any()
    assert seen[second:third].all()
    assert not seen[third:].any()


def test_targets_lie_at_the_things_centre() -> None:
    scene = Scene(140, 140, (Thing("star", "blue", 0.7, 0.3, 0.2),))
    found = targets(TINY, scene, (2, 2))
    assert len(found["kind"]) == 4 * 4 + 6 * 6
    # 7 x 7 patches in groups of 2 x 2: x 0.7 is at 2.45 groups, y 0.3 at 1.05. On the canvas of 12 x 12: 4.2 and 1.8.
    assert list(np.flatnonzero(found["kind"])) == [1 * 4 + 2, 16 + 1 * 6 + 4]
    assert found["kind"].max() == 4
    assert list(found["digits"][6]) == [7, 0, 3, 0]
    np.testing.assert_allclose(found["offset"][[6, 26]], [[-0.05, -0.45], [-0.3, 0.3]], atol=1e-6)
    patches = patch_targets(TINY, scene, (2, 2))["patch_kind"].reshape(5, 7, 7)
    assert patches[0, 2, 4] == 4
    assert patches[0, 2, 0] == 0
    assert patches[2, 3, 3] == 4


def test_every_tiling_of_training_has_pictures() -> None:
    assert {(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1)} <= set(sizes(TINY))
