"""The ViT stage.

Axes: C crops, N patches, M patches padded to a multiple of 16, E values of a patch, D width, H heads, h head dim,
F joined features.
"""

import jax
import jax.numpy as jnp
from jax import lax

from molmo2_iree.architecture import Vision
from molmo2_iree.model.layers import Parameters, gelu_tanh, layer_norm, linear, masked_softmax, split_heads
from molmo2_iree.stages import round_up

Taps = dict[str, jax.Array]


def vision(v: Vision, p: Parameters, patches: jax.Array) -> tuple[jax.Array, Taps]:
    """patches [C, N, E] -> features [C, N, F]: the selected states joined in listed order (contract section 5)."""
    taps: Taps = {"embedded": linear(patches, p, "vit.patch_embedding")}
    taps["positioned"] = x = taps["embedded"] + p["vit.position"]
    padding = round_up(v.patches) - v.patches
    x = jnp.pad(x, ((0, 0), (0, padding), (0, 0)))
    real = jnp.arange(v.patches + padding) < v.patches if padding else None
    for i in range(v.blocks):
        x = block(v, p, f"vit.blocks.{i}", x, real)
        taps[f"block.{i}"] = x[:, : v.patches]
    return jnp.concatenate([taps[f"block.{i}"] for i in v.layers], -1), taps


def block(v: Vision, p: Parameters, name: str, x: jax.Array, real: jax.Array | None) -> jax.Array:
    """x [C, M, D] -> [C, M, D]; ``real`` [M] marks the keys that are patches and not padding."""
    x = x + attention(v, p, f"{name}.attention", layer_norm(x, p, f"{name}.attention_norm", v.eps), real)
    hidden = gelu_tanh(linear(layer_norm(x, p, f"{name}.mlp_norm", v.eps), p, f"{name}.mlp.up"))
    return x + linear(hidden, p, f"{name}.mlp.down")


def attention(v: Vision, p: Parameters, name: str, x: jax.Array, real: jax.Array | None) -> jax.Array:
    """Full attention among the patches of one crop; crops never see each other."""
    q, k, value = (split_heads(linear(x, p, f"{name}.{part}"), v.heads) for part in "qkv")
    exact = lax.Precision.HIGHEST
    scores = jnp.einsum("cqhd,ckhd->chqk", q, k, precision=exact) * v.head_dim**-0.5
    weights = masked_softmax(scores, real)
    mixed = jnp.einsum("chqk,ckhd->cqhd", weights, value, precision=exact)
    return linear(mixed.reshape(*x.shape[:-1], -1), p, f"{name}.out")
