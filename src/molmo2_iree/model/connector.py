"""The connector stage: groups of patches become image tokens.

Axes: C crops, N patches, F joined features, G groups, P patches of a group, H heads, h head dim, d text width.
"""

import jax
import jax.numpy as jnp

from molmo2_iree.architecture import Connector
from molmo2_iree.model.layers import Parameters, linear, masked_softmax, silu, split_heads
from molmo2_iree.model.vision import Taps


def connector(c: Connector, p: Parameters, features: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array, Taps]:
    """features [C, N, F], groups [G, P] of patch numbers or -1 -> image tokens [G, d], valid [G] (contract section 6).

    A group without any patch gives a row of zeros and valid 0.
    """
    mask, gathered = gather_groups(features.reshape(-1, features.shape[-1]), groups)
    size = groups.shape[1]
    count = jnp.maximum(jnp.sum(mask.astype(jnp.float32), -1), 1.0) if c.pooling_mask else jnp.float32(size)
    query = jnp.sum(gathered, 1) / (count[:, None] if c.pooling_mask else count)
    pooled = pool(c, p, query, gathered, mask if c.pooling_mask else None)
    hidden = silu(linear(pooled, p, "projector.gate")) * linear(pooled, p, "projector.up")
    valid = jnp.any(mask, -1)
    tokens = jnp.where(valid[:, None], linear(hidden, p, "projector.down"), 0.0)
    taps = {"gathered": gathered, "mask": mask.astype(jnp.int32), "query": query, "pooled": pooled}
    return tokens, valid.astype(jnp.int32), taps


def gather_groups(flat: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    """flat [C * N, F], groups [G, P] -> (mask [G, P], gathered [G, P, F]): -1 reads row 0 safely and is then zeroed.

    groups [[2, -1]] of flat [[1.], [2.], [3.]] give mask [[True, False]] and gathered [[[3.], [0.]]].
    """
    mask = groups >= 0
    rows = flat.at[jnp.maximum(groups, 0)].get(mode="promise_in_bounds")
    return mask, jnp.where(mask[..., None], rows, 0.0)


def pool(c: Connector, p: Parameters, query: jax.Array, gathered: jax.Array, mask: jax.Array | None) -> jax.Array:
    """query [G, F], gathered [G, P, F] -> [G, width]: one query attends to the patches of its group."""
    q = split_heads(linear(query, p, "pooling.q"), c.heads)
    k, value = (split_heads(linear(gathered, p, f"pooling.{part}"), c.heads) for part in "kv")
    scores = jnp.sum(q[:, None] * k, -1).swapaxes(1, 2) * c.head_dim**-0.5
    weights = masked_softmax(scores, None if mask is None else mask[:, None])
    mixed = jnp.sum(weights.swapaxes(1, 2)[..., None] * value, 1)
    return linear(mixed.reshape(query.shape[0], -1), p, "pooling.out")
