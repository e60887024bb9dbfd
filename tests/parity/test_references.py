"""The two references, written apart, agree on every intermediate, and a wrong model does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_requests import request

from molmo2_iree.build.embedded import DEFAULT, OLMO, Variant, write_checkpoint
from molmo2_iree.errors import CheckpointError, GateError, UnsupportedError
from molmo2_iree.parity import native, specification

VARIANTS = {"default": DEFAULT, "olmo": OLMO, "single-file": replace(DEFAULT, shards=1)}
TILES = {"text": (), "one picture": (1,), "wide picture": (3,), "two pictures": (1, 2)}
RELATIVE = 3e-5
"""Largest float32 error of a stage, as a share of its largest value: 1.1e-5 was measured."""


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, variant = tmp_path_factory.mktemp("checkpoint"), VARIANTS[request.param]
    write_checkpoint(folder, variant=variant)
    return folder, variant, native.load(folder)


def wrong(folder: Path, case: dict[str, Any], variant: Variant) -> np.ndarray:
    """Last logits of the same seed's checkpoint made as another variant."""
    write_checkpoint(folder, variant=variant)
    return specification.specify(folder, **case)["prefill.logits"][-1]


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_every_intermediate_agrees(checkpoint: Any, tiles: tuple[int, ...]) -> None:
    folder, variant, model = checkpoint
    case = request(3, tiles, variant=variant)
    expected, got = specification.specify(folder, **case), native.observe(model, **case)
    assert set(expected) - set(got) == ({"connector.mask", "connector.valid"} if tiles else set())
    assert set(got) <= set(expected)
    for name, array in got.items():
        assert array.shape == expected[name].shape, name
        assert array.dtype == np.float32, name
        error, top = np.abs(array - expected[name]).max(), np.abs(expected[name]).max()
        assert error <= RELATIVE * top, f"{name}: {error} of {top}"


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_greedy_tokens_agree(checkpoint: Any, tiles: tuple[int, ...]) -> None:
    folder, variant, model = checkpoint
    case = request(4, tiles, variant=variant)
    tokens, logits = specification.greedy(folder, **case, steps=24)
    native_tokens, native_logits = native.greedy(model, **case, steps=24)
    assert native_tokens == tokens
    np.testing.assert_allclose(native_logits, logits, atol=5e-4, rtol=0)
    assert len(set(tokens)) > 8


def test_causal_image_part_agrees(checkpoint: Any) -> None:
    folder, variant, model = checkpoint
    case = request(5, (1, 1), variant=variant)
    expected = specification.specify(folder, **case, causal_image=True)["prefill.logits"]
    np.testing.assert_allclose(
        native.observe(model, **case, causal_image=True)["prefill.logits"], expected, atol=2e-4, rtol=0
    )
    both = specification.specify(folder, **case)["prefill.logits"]
    assert np.abs(both[-1] - expected[-1]).max() > 0.1


def test_a_group_without_patches_gives_no_token(checkpoint: Any) -> None:
    folder, variant, model = checkpoint
    case = request(6, (1,), variant=variant)
    empty = np.full((1, 4), -1, np.int32)
    padded = case | {"groups": np.concatenate([case["groups"][:5], empty, case["groups"][5:]]), "group_counts": [33]}
    expected, got = specification.specify(folder, **case), specification.specify(folder, **padded)
    assert got["connector.valid"].tolist() == [1] * 5 + [0] + [1] * 27
    assert not got["connector.tokens"][5].any()
    np.testing.assert_array_equal(got["prefill.logits"], expected["prefill.logits"])
    np.testing.assert_allclose(
        native.observe(model, **padded)["prefill.logits"], expected["prefill.logits"], atol=2e-4, rtol=0
    )


def test_cached_steps_equal_one_long_prefill(checkpoint: Any) -> None:
    folder, variant, _ = checkpoint
    case = request(7, (2,), variant=variant)
    tokens, logits = specification.greedy(folder, **case, steps=5)
    longer = np.concatenate([case["ids"], tokens[:-1]])
    types = np.concatenate([case["types"], np.zeros(4, np.int32)])
    once = specification.specify(folder, **(case | {"ids": longer, "types": types}))["prefill.logits"]
    np.testing.assert_allclose(once[-5:], logits, atol=1e-10, rtol=0)


def test_the_answer_depends_on_the_picture(checkpoint: Any) -> None:
    folder, variant, _ = checkpoint
    answers = [specification.greedy(folder, **request(seed, (1,), variant=variant), steps=8)[0] for seed in (1, 2)]
    assert answers[0] != answers[1]


MISTAKES = {
    "layers in another order": {"vit_layers": (-6, -4, -3)},
    "layers one too low": {"vit_layers": (-5, -7, -4)},
    "no pooling mask": {"pooling_mask": False},
    "no q and k norm": {"qk_norm": "none"},
    "another theta": {"rope_theta": 1e4},
    "other norm order": {"norm_after": True},
}


@pytest.mark.parametrize("change", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_shows(change: dict[str, Any], tmp_path: Path) -> None:
    case = request(8, (1,))
    expected = wrong(tmp_path / "right", case, DEFAULT)
    assert np.abs(wrong(tmp_path / "wrong", case, replace(DEFAULT, **change)) - expected).max() > 0.1


@pytest.mark.parametrize("layers", [None, (0, 2), (0, 1, 2, 3)])
def test_scaled_layers_show(layers: tuple[int, ...] | None, tmp_path: Path) -> None:
    case = request(9, (1,), variant=OLMO)
    expected = wrong(tmp_path / "right", case, OLMO)
    assert np.abs(wrong(tmp_path / "wrong", case, replace(OLMO, yarn_layers=layers)) - expected).max() > 0.1


@pytest.mark.parametrize(
    ("change", "field"), [({"qk_norm": "none"}, "use_qk_norm"), ({"pooling_mask": False}, "pooling_attention_mask")]
)
def test_transformers_is_not_asked_what_it_ignores(change: dict[str, Any], field: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant=replace(DEFAULT, **change))
    with pytest.raises(UnsupportedError, match=field):
        native.load(tmp_path)


def test_counts_must_fit(checkpoint: Any) -> None:
    folder, variant, model = checkpoint
    case = request(10, (1,), variant=variant)
    shorter: dict[str, Any] = case | {"ids": case["ids"][:20], "types": case["types"][:20]}
    with pytest.raises(GateError, match="image-patch ids"):
        specification.specify(folder, **shorter)
    fewer: dict[str, Any] = case | {"group_counts": [31]}
    with pytest.raises(GateError, match="sums over the images"):
        native.observe(model, **fewer)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("lm_head.weight", "other.weight"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        specification.specify(tmp_path, **request(11, ()))


def test_environment_states_exact_products() -> None:
    facts = native.environment()
    assert facts["float32_matmul_precision"] == "highest"
    assert facts["cuda_matmul_tf32"] is False
    assert {"torch", "transformers", "device", "dtype", "threads"} <= set(facts)
