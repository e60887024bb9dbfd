"""Rotary tables against the frequencies that contract section 7 lists, and the rotation itself."""

import hashlib

import jax.numpy as jnp
import numpy as np
import pytest

from molmo2_iree.architecture import Text, Yarn
from molmo2_iree.model.rotation import rotation_kind, rotation_shapes, rotation_table
from molmo2_iree.model.text import rotate

YARN = Yarn(
    layers=(3, 7),
    factor=8.0,
    attention_factor=1.2079441541679836,
    beta_fast=32.0,
    beta_slow=1.0,
    original_positions=8192,
)


def text(theta: float, positions: int = 1024, yarn: Yarn | None = None, layers: int = 8) -> Text:
    return Text(
        width=2560,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=9728,
        vocabulary=151936,
        extra_vocabulary=128,
        norm_after=False,
        qk_norm="head",
        rope_theta=theta,
        yarn=yarn,
        eps=1e-6,
        max_positions=positions,
        activation="silu",
    )


def frequencies(table: Text, kind: str) -> np.ndarray:
    """Inverse frequencies [64]: the angles at position 1."""
    sin, cos = (rotation_table(table, f"rope.{kind}.{part}")[1].astype(np.float64) for part in ("sin", "cos"))
    return np.arctan2(sin, cos)


LISTED = {
    5e6: [1, 0.78582996, 2.5450797e-07],
    1e6: [1, 0.80584216, 1.2409378e-06],
    5e5: [1, 0.8146172, 2.4551407e-06],
}


@pytest.mark.parametrize(("theta", "listed"), LISTED.items(), ids=["4b", "8b", "o-7b"])
def test_first_second_and_last_frequency(theta: float, listed: list[float]) -> None:
    np.testing.assert_allclose(frequencies(text(theta), "plain")[[0, 1, 63]], listed, rtol=2e-7)


@pytest.mark.parametrize("theta", LISTED, ids=["4b", "8b", "o-7b"])
def test_rows_are_the_cosine_and_sine_of_the_rounded_angle(theta: float) -> None:
    """To the last bit: power, quotient and product each rounded to float32 once, then float64, then one rounding."""
    table = text(theta, positions=36864)
    inverse = np.array([np.float32(1) / np.float32(theta ** (2 * i / 128)) for i in range(64)])
    positions = np.array([0, 1, 2, 999, 36863])
    angles = positions.astype(np.float32)[:, None] * inverse
    for part, function in (("cos", np.cos), ("sin", np.sin)):
        got = rotation_table(table, f"rope.plain.{part}")
        assert (got.shape, got.dtype) == ((36864, 64), np.float32)
        np.testing.assert_array_equal(got[positions], function(angles.astype(np.float64)).astype(np.float32))


DIGESTS = {
    (5e6, "plain"): "f62866f1978dd3c4",
    (1e6, "plain"): "04f58568fc41a495",
    (5e5, "yarn"): "7e98d9c8a7bcb539",
}


@pytest.mark.parametrize(("which", "digest"), DIGESTS.items(), ids=["4b", "8b", "o-7b"])
def test_tables_are_the_same_bytes_on_every_machine(which: tuple[float, str], digest: str) -> None:
    """Whatever instructions numpy picks: the digests were made with and without AVX2 and AVX-512."""
    table, total = text(which[0], yarn=YARN if which[1] == "yarn" else None), hashlib.sha256()
    for part in ("cos", "sin"):
        total.update(rotation_table(table, f"rope.{which[1]}.{part}").astype("<f4").tobytes())
    assert total.hexdigest()[:16] == digest


def test_every_row_is_near_the_exact_one() -> None:
    """Against float64 throughout: what is lost is the rounding of frequency and angle, 2 ** -23 of the angle."""
    exact = np.arange(1024)[:, None] * 5e6 ** (-np.arange(64) / 64)
    for part, function in (("cos", np.cos), ("sin", np.sin)):
        error = np.abs(rotation_table(text(5e6), f"rope.plain.{part}") - function(exact))
        assert (error <= exact * 2.0**-22 + 2.0**-23).all()


def test_yarn_ramp_and_factor() -> None:
    """Dimensions to 18 keep their frequency, from 35 they are 8 times slower, between them a straight ramp."""
    table = text(5e5, yarn=YARN)
    plain, yarn = frequencies(table, "plain"), frequencies(table, "yarn")
    kept = 1 - np.clip((np.arange(64) - 18) / 17, 0, 1)
    np.testing.assert_allclose(yarn / plain, kept + (1 - kept) / 8, rtol=1e-6)
    sin, cos = (rotation_table(table, f"rope.yarn.{part}").astype(np.float64) for part in ("sin", "cos"))
    np.testing.assert_allclose(np.hypot(sin, cos), 1.2079441541679836, rtol=2e-7)
    assert abs(0.1 * np.log(8) + 1 - 1.2079441541679836) < 1e-15


def test_only_the_kinds_that_layers_use_are_tables() -> None:
    shape = (1024, 64)
    plain = {"rope.plain.cos": shape, "rope.plain.sin": shape}
    yarn = {"rope.yarn.cos": shape, "rope.yarn.sin": shape}
    assert rotation_shapes(text(5e5)) == plain
    assert rotation_shapes(text(5e5, yarn=YARN)) == plain | yarn
    assert rotation_shapes(text(5e5, yarn=YARN.model_copy(update={"layers": (0, 1)}), layers=2)) == yarn
    assert rotation_shapes(text(5e5, yarn=YARN.model_copy(update={"layers": ()}))) == plain
    assert [rotation_kind(text(5e5, yarn=YARN), layer) for layer in (2, 3, 7)] == ["plain", "yarn", "yarn"]


def test_a_dimension_turns_with_the_one_half_a_head_away() -> None:
    """A quarter turn of the first pair, none of the second: [1, 2 | 3, 4] becomes [-3, 2 | 1, 4]."""
    x = jnp.array([[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]])
    got = rotate(x, jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(got, [[[-3.0, 2.0, 1.0, 4.0], [-7.0, 6.0, 5.0, 8.0]]])


def test_rows_turn_by_their_own_angle() -> None:
    x = jnp.ones((2, 1, 2))
    got = rotate(x, jnp.array([[1.0], [0.0]]), jnp.array([[0.0], [1.0]]))
    np.testing.assert_array_equal(got, [[[1.0, 1.0]], [[-1.0, 1.0]]])
