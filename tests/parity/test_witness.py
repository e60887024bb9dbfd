"""mlx-vlm with three corrections agrees with the specification; as shipped it differs where each of them would act."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_records import record
from hand_requests import request
from mlx_vlm.models.molmo2.config import VitConfig

from molmo2_iree.build.embedded import DEFAULT, OLMO, Variant, write_checkpoint
from molmo2_iree.build.embedded_config import json_files
from molmo2_iree.build.plan import Plan
from molmo2_iree.detect import read_architecture
from molmo2_iree.errors import CheckpointError, GateError, UnsupportedError
from molmo2_iree.parity import specification, witness
from molmo2_iree.parity.compare import compare
from molmo2_iree.parity.expected import STAGES, covered
from molmo2_iree.parity.judge import judge
from molmo2_iree.parity.witness import INJECTED, Witness

TILES = {"text": (), "one picture": (1,), "two pictures": (1, 2)}
RELEASED = replace(DEFAULT, vit_blocks=27, vit_layers=(-3, -9))
"""As many blocks as a release: 27 declared, 25 stored."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def corrected(folder: Path) -> Witness:
    return witness.load(folder, corrected=True)


@pytest.fixture(scope="module")
def shipped(folder: Path) -> Witness:
    return witness.load(folder, corrected=False)


def differing(plan: Plan, got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> list[str]:
    """Stages outside config/tolerances.yaml, in the order of the line."""
    found = [
        compare(name, got[name], array, exact=array.dtype.kind == "i")
        for name, array in expected.items()
        if name in got
    ]
    verdicts = judge(record(*found), plan.config.tolerances["float32"])[: len(found)]
    return [verdict["stage"] for verdict in verdicts if not verdict["passed"]]


def largest(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], names: Iterable[str]) -> float:
    return max(float(np.abs(got[name] - expected[name]).max()) for name in names)


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_corrected_agrees_with_every_intermediate(
    folder: Path, corrected: Witness, plan: Plan, tiles: tuple[int, ...]
) -> None:
    case = request(3, tiles)
    expected, got = specification.specify(folder, **case), witness.observe(corrected, **case)
    assert set(expected) - set(got) == ({"connector.valid"} if tiles else set())
    assert set(got) <= set(expected)
    assert {array.dtype.name for name, array in got.items() if name != "connector.mask"} == {"float32"}
    assert differing(plan, got, expected) == []


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_corrected_says_the_same_tokens(folder: Path, corrected: Witness, tiles: tuple[int, ...]) -> None:
    case = request(4, tiles)
    tokens, logits = specification.greedy(folder, **case, steps=24)
    said, their_logits = witness.greedy(corrected, **case, steps=24)
    assert said == tokens
    np.testing.assert_allclose(their_logits, logits, atol=5e-4, rtol=0)


@pytest.mark.parametrize("tiles", [(1,), (1, 2)])
def test_shipped_differs_in_its_own_stages_alone(
    folder: Path, shipped: Witness, plan: Plan, tiles: tuple[int, ...]
) -> None:
    """Each stage goes on from the specification's arrays, so no error is carried into the next."""
    case = request(3, tiles)
    expected = specification.specify(folder, **case)
    got = witness.observe(shipped, **case, injected=expected)
    wrong = differing(plan, got, expected)
    assert wrong[0] == "vision.block.0"
    assert {name.partition(".")[0] for name in wrong} == {"vision", "prefill"}
    assert not {"vision.embedded", "vision.positioned", "prefill.keys.0", "prefill.values.0"} & set(wrong)
    blocks = [name for name in expected if name.startswith("vision.block.")]
    assert set(blocks) < set(wrong)
    assert 0.01 < largest(got, expected, blocks) < 0.5, "another GELU: small"
    assert largest(got, expected, ["vision.features"]) > 1, "other layers: large"
    assert largest(got, expected, ["prefill.logits"]) > 1, "another mask: large"
    assert witness.greedy(shipped, **case, steps=4)[0] != specification.greedy(folder, **case, steps=4)[0]


def test_shipped_is_right_about_text(folder: Path, shipped: Witness, plan: Plan) -> None:
    case = request(3, ())
    expected = specification.specify(folder, **case)
    assert differing(plan, witness.observe(shipped, **case, injected=expected), expected) == []


LEFT_OUT = {"layers": "vision.features", "gelu": "vision.block.0", "mask": "prefill.layer.0"}


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_each_correction_is_needed_at_its_stage(left_out: str, folder: Path, plan: Plan) -> None:
    case = request(5, (1, 1))
    expected = specification.specify(folder, **case)
    loaded = witness.load(folder, corrected=left_out == "mask")
    if left_out == "layers":
        witness.use_tanh_gelu(loaded.model)
    if left_out == "gelu":
        witness.choose_layers(loaded.model, json_files(DEFAULT)["config.json"])
    loaded = replace(loaded, corrected=left_out != "mask")
    assert differing(plan, witness.observe(loaded, **case), expected)[0] == LEFT_OUT[left_out]


def test_a_causal_image_part_needs_no_other_mask(
    folder: Path, corrected: Witness, shipped: Witness, plan: Plan
) -> None:
    case = request(5, (1, 1))
    expected = specification.specify(folder, **case, causal_image=True)
    assert differing(plan, witness.observe(corrected, **case, causal_image=True), expected) == []
    got = witness.observe(shipped, **case, causal_image=True, injected=expected)
    assert not [name for name in differing(plan, got, expected) if name.startswith("prefill")]


def test_the_mask_of_the_docstring() -> None:
    rows = np.array(witness.image_mask(np.array([0, 1, 1])))[0, 0]
    assert rows.astype(int).tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_layers_of_a_release(tmp_path: Path) -> None:
    """As shipped the package cuts 27 declared blocks to the 25 stored before it counts; here the stored are counted."""
    write_checkpoint(tmp_path, variant=RELEASED)
    assert VitConfig.from_dict(json_files(RELEASED)["config.json"]["vit_config"]).num_hidden_layers == RELEASED.blocks
    layers = [witness.load(tmp_path, corrected=corrected).model.vision_tower.vit_layers for corrected in (False, True)]
    assert layers == [[22, 16], [24, 18]]


def test_a_group_without_patches_gives_no_token(folder: Path, corrected: Witness, plan: Plan) -> None:
    case = request(6, (1,))
    empty = np.full((1, 4), -1, np.int32)
    padded: dict[str, Any] = case | {
        "groups": np.concatenate([case["groups"][:5], empty, case["groups"][5:]]),
        "group_counts": [33],
    }
    expected, got = specification.specify(folder, **padded), witness.observe(corrected, **padded)
    assert not got["connector.tokens"][5].any()
    del got["connector.pooled"]
    assert differing(plan, got, expected) == []


@pytest.mark.parametrize("variant", [replace(DEFAULT, pooling_mask=False), replace(DEFAULT, shards=1)])
def test_other_checkpoints_it_can_read(variant: Variant, tmp_path: Path, plan: Plan) -> None:
    write_checkpoint(tmp_path, variant=variant)
    case = request(7, (1,), variant=variant)
    expected = specification.specify(tmp_path, **case)
    assert differing(plan, witness.observe(witness.load(tmp_path, corrected=True), **case), expected) == []


OTHER_DECODERS = {
    "norm_after": OLMO,
    "use_qk_norm": replace(DEFAULT, qk_norm="none"),
    "qk_norm_type": replace(OLMO, norm_after=False),
    "rope_scaling": replace(DEFAULT, yarn_layers=(1,)),
}


@pytest.mark.parametrize("field", OTHER_DECODERS)
def test_another_decoder_is_refused_and_the_rest_is_witnessed(field: str, tmp_path: Path, plan: Plan) -> None:
    variant = OTHER_DECODERS[field]
    write_checkpoint(tmp_path, variant=variant)
    loaded = witness.load(tmp_path, corrected=True)
    facts = witness.environment(loaded)
    assert (facts["covers"], facts["decoder_refused_for"]) == (["vision", "connector", "merge"], f"text_config.{field}")
    case = request(8, (1, 2), variant=variant)
    expected, got = specification.specify(tmp_path, **case), witness.observe(loaded, **case)
    assert {name.partition(".")[0] for name in got} == set(loaded.covers)
    assert differing(plan, got, expected) == []
    with pytest.raises(UnsupportedError, match=f"text_config.{field}"):
        witness.greedy(loaded, **case, steps=1)


@pytest.mark.parametrize("variant", [DEFAULT, *OTHER_DECODERS.values()])
def test_the_gate_expects_what_can_be_covered(variant: Variant, tmp_path: Path, plan: Plan) -> None:
    """From the lock, apart from what the reference says of itself, so that it cannot excuse itself."""
    write_checkpoint(tmp_path, variant=variant)
    other = replace(plan, lock=plan.lock.model_copy(update={"architecture": read_architecture(json_files(variant))}))
    assert witness.load(tmp_path, corrected=True).covers == covered(other, "mlx") == covered(other, "mlx-shipped")
    assert covered(other, "native") == covered(other, "specification") == STAGES


def test_a_run_leaves_the_model_as_it_was(folder: Path, plan: Plan) -> None:
    loaded = witness.load(folder, corrected=True)
    case = request(9, (1,))
    first = witness.observe(loaded, **case)
    other = {name: np.ones_like(array) for name, array in specification.specify(folder, **case).items()}
    changed = witness.observe(loaded, **case, injected=other)
    again = witness.observe(loaded, **case)
    assert set(INJECTED) <= set(other)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["prefill.logits"], changed["prefill.logits"])
    assert np.array_equal(first["vision.features"], changed["vision.features"]), "what it computed is what is shown"


def test_counts_must_fit(corrected: Witness) -> None:
    case = request(10, (1,))
    fewer: dict[str, Any] = case | {"group_counts": [31]}
    with pytest.raises(GateError, match="sums over the images"):
        witness.observe(corrected, **fewer)
    shorter: dict[str, Any] = case | {"ids": case["ids"].copy()}
    shorter["ids"][3] = 0
    with pytest.raises(GateError, match="image features"):
        witness.observe(corrected, **shorter)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant=replace(DEFAULT, shards=1))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"lm_head.weight"', b'"lm_tail.weight"'))
    with pytest.raises(CheckpointError, match=r"lm_tail\.weight"):
        witness.load(tmp_path, corrected=True)
