"""Building blocks, each against numpy or a few numbers by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molmo2_iree.model.layers import (
    gelu_tanh,
    layer_norm,
    linear,
    masked_softmax,
    matmul,
    rms_norm,
    silu,
    split_heads,
)

X = np.array([[1.0, 2.0, 3.0, 6.0], [-4.0, 0.0, 4.0, 0.0]], np.float32)
WEIGHT = np.array([1.0, 2.0, 1.0, -1.0], np.float32)
BIAS = np.array([0.0, 0.5, 0.0, 1.0], np.float32)


def test_matrices_are_stored_out_by_in() -> None:
    weight = jnp.array([[1.0, 0.0, 0.0], [0.0, 10.0, 100.0]])
    np.testing.assert_array_equal(matmul(jnp.array([[1.0, 2.0, 3.0]]), weight), [[1.0, 320.0]])
    with_bias = {"a.weight": weight, "a.bias": jnp.array([0.5, -0.5]), "b.weight": weight}
    np.testing.assert_array_equal(linear(jnp.array([1.0, 2.0, 3.0]), with_bias, "a"), [1.5, 319.5])
    np.testing.assert_array_equal(linear(jnp.array([1.0, 2.0, 3.0]), with_bias, "b"), [1.0, 320.0])


def test_narrow_matrices_are_widened_before_the_product() -> None:
    """1 + 2 ** -9 is no bfloat16: the input must not be rounded to the matrix's dtype."""
    x = jnp.array([[1 + 2.0**-9, 2.0**-9]], jnp.float32)
    product = matmul(x, jnp.ones((1, 2), jnp.bfloat16))
    assert product.dtype == jnp.float32
    assert product.tolist() == [[1 + 2.0**-8]]


def test_layer_norm_by_hand() -> None:
    """Rows of mean 3 and 0, of biased variance 3.5 and 8."""
    got = layer_norm(jnp.asarray(X), {"n.weight": jnp.asarray(WEIGHT), "n.bias": jnp.asarray(BIAS)}, "n", 0.0)
    first = np.array([-2, -1, 0, 3]) / math.sqrt(3.5) * WEIGHT + BIAS
    second = np.array([-4, 0, 4, 0]) / math.sqrt(8) * WEIGHT + BIAS
    np.testing.assert_allclose(got, [first, second], rtol=1e-6, atol=1e-6)


def test_layer_norm_adds_eps_to_the_variance() -> None:
    parameters = {"n.weight": jnp.ones(2), "n.bias": jnp.zeros(2)}
    np.testing.assert_allclose(layer_norm(jnp.array([-1.0, 1.0]), parameters, "n", 3.0), [-0.5, 0.5], rtol=1e-6)


def test_rms_norm_by_hand() -> None:
    """Mean squares 12.5 and 8, nothing subtracted."""
    got = rms_norm(jnp.asarray(X), jnp.asarray(WEIGHT), 0.0)
    np.testing.assert_allclose(got, X / np.sqrt([[12.5], [8.0]]) * WEIGHT, rtol=1e-6)
    np.testing.assert_allclose(rms_norm(jnp.array([1.0, 1.0]), jnp.ones(2), 3.0), [0.5, 0.5], rtol=1e-6)


def test_norms_of_zeros_are_finite() -> None:
    zeros = jnp.zeros((2, 4))
    assert not rms_norm(zeros, jnp.ones(4), 1e-6).any()
    assert not layer_norm(zeros, {"n.weight": jnp.ones(4), "n.bias": jnp.zeros(4)}, "n", 1e-6).any()


def test_masked_softmax_by_hand() -> None:
    scores = jnp.array([[0.0, 0.0, 5.0], [1.0, 1.0 + math.log(3), 0.0]])
    visible = jnp.array([[True, True, False], [True, True, False]])
    np.testing.assert_allclose(masked_softmax(scores, visible), [[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(masked_softmax(scores[1:, :2], None), [[0.25, 0.75]], rtol=1e-6)


def test_a_row_that_sees_nothing_is_finite() -> None:
    got = masked_softmax(jnp.array([[3.0, -2.0], [0.0, 1.0]]), jnp.array([[False, False], [True, False]]))
    assert np.isfinite(got).all()
    assert got[1].tolist() == [1.0, 0.0]


def test_large_scores_do_not_overflow() -> None:
    np.testing.assert_array_equal(masked_softmax(jnp.array([1e4, -1e4, 1e4]), None), [0.5, 0.0, 0.5])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-60, 60, width=32), min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
def test_masked_softmax_is_the_softmax_of_what_is_visible(scores: list[float], visible: list[bool]) -> None:
    got = np.asarray(masked_softmax(jnp.array(scores, jnp.float32), jnp.array(visible)))
    assert np.isfinite(got).all()
    if any(visible):
        seen = np.array(visible)
        powers = np.where(seen, np.exp(np.array(scores) - max(np.array(scores)[seen])), 0)
        np.testing.assert_allclose(got, powers / powers.sum(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
def test_activations(shape: tuple[int, ...]) -> None:
    """Both against their definition; the tanh form of GELU is not the erf form at 2, nor x * sigmoid(1.702 x)."""
    x = np.linspace(-6, 6, 241).astype(np.float32).reshape(*(1 for _ in shape), -1)
    wide = x.astype(np.float64)
    tanh = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(gelu_tanh(jnp.asarray(x)), tanh, atol=5e-7)
    np.testing.assert_allclose(silu(jnp.asarray(x)), wide / (1 + np.exp(-wide)), atol=5e-7)


def test_which_gelu() -> None:
    """At 2: tanh form 1.954598, erf form 1.954500, sigmoid form 1.935659."""
    assert abs(float(gelu_tanh(jnp.float32(2))) - 1.954598) < 2e-6


def test_activations_of_large_values_are_finite() -> None:
    assert gelu_tanh(jnp.array([-1e4, 1e4])).tolist() == [0.0, 1e4]
    assert silu(jnp.array([-1e4, 1e4])).tolist() == [0.0, 1e4]


def test_a_head_is_a_contiguous_slice() -> None:
    assert split_heads(jnp.arange(6), 3).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert split_heads(jnp.zeros((5, 7, 12)), 4).shape == (5, 7, 4, 3)
