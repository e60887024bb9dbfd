"""Building blocks of every traced stage. Arithmetic is float32, whatever the parameters are stored in.

Axes: ... any leading axes, i input width, o output width, H heads, h head dim.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

Parameters = Mapping[str, jax.Array]
"""Dotted parameter name -> array."""

MASKED = -1e30
"""Stands for minus infinity in attention: a row with nothing visible stays finite."""


def linear(x: jax.Array, parameters: Parameters, name: str) -> jax.Array:
    """x [..., i] times ``{name}.weight`` [o, i], plus ``{name}.bias`` [o] where there is one."""
    y = matmul(x, parameters[f"{name}.weight"])
    bias = parameters.get(f"{name}.bias")
    return y if bias is None else y + bias


def matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [..., i] @ weight [o, i] transposed, in full float32."""
    contract = (((x.ndim - 1,), (1,)), ((), ()))
    return lax.dot_general(x, weight.astype(jnp.float32), contract, precision=lax.Precision.HIGHEST)


def layer_norm(x: jax.Array, parameters: Parameters, name: str, eps: float) -> jax.Array:
    """Mean and biased variance over the last axis. The barriers keep the statistics out of a fusion that overflows."""
    mean = lax.optimization_barrier(jnp.mean(x, -1, keepdims=True))
    centred = x - mean
    variance = lax.optimization_barrier(jnp.mean(centred * centred, -1, keepdims=True))
    return centred * lax.rsqrt(variance + eps) * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def masked_softmax(scores: jax.Array, visible: jax.Array | None) -> jax.Array:
    """Softmax over the last axis of the visible entries; the barriers keep the reductions in loops of their own."""
    if visible is not None:
        scores = jnp.where(visible, scores, MASKED)
    top = lax.optimization_barrier(jnp.max(scores, -1, keepdims=True))
    weights = jnp.exp(scores - top)
    total = lax.optimization_barrier(jnp.sum(weights, -1, keepdims=True))
    return weights / total


def gelu_tanh(x: jax.Array) -> jax.Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))


def silu(x: jax.Array) -> jax.Array:
    """x * sigmoid(x)."""
    return x * jax.nn.sigmoid(x)


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[..., heads * h] -> [..., heads, h]; a head is a contiguous slice."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
