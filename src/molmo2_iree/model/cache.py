"""Writing rows into the cache in place; a row no token owns keeps its bytes.

Axes: L slots of the cache, B slots advanced, K kv heads, h head dim, X context rows, T new tokens.
"""

import jax
import jax.numpy as jnp
from jax import lax


def write_slots(
    keys: jax.Array, values: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Write k, v [B, K, h] at ``positions`` [B] of slots 0..B-1 where ``active`` [B] is 1.

    keys [L, K, h, X], values [L, K, X, h]. An inactive slot writes back what it held. The barrier keeps the old
    rows' selection out of the scatter, which does not compile otherwise.
    """
    batch, heads, size = k.shape
    b = jnp.arange(batch)[:, None, None]
    h = jnp.arange(heads)[None, :, None]
    e = jnp.arange(size)[None, None, :]
    at = positions[:, None, None]
    live = active[:, None, None] > 0
    new = (
        jnp.where(live, k.astype(keys.dtype), keys.at[b, h, e, at].get(mode="promise_in_bounds")),
        jnp.where(live, v.astype(values.dtype), values.at[b, h, at, e].get(mode="promise_in_bounds")),
    )
    k, v = lax.optimization_barrier(new)
    put = {"unique_indices": True, "mode": "promise_in_bounds"}
    return keys.at[b, h, e, at].set(k, **put), values.at[b, h, at, e].set(v, **put)


def write_span(
    keys: jax.Array, values: jax.Array, k: jax.Array, v: jax.Array, slot: jax.Array, start: jax.Array, length: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Write the first ``length`` of k, v [T, K, h] at rows ``start``.. of one slot.

    A window of T rows that ends inside the cache is read, changed where a new row belongs, and written back, so a
    span that ends at the last row neither shifts nor touches its neighbours: of rows [a b c d], T 3, start 3,
    length 1 reads [b c d] and writes [b c new].
    """
    tokens, capacity = k.shape[0], values.shape[2]
    first = jnp.minimum(start, capacity - tokens)
    source = first + jnp.arange(tokens) - start
    ours = (source >= 0) & (source < length)
    source = jnp.clip(source, 0, tokens - 1)
    k, v = (x.at[source].get(mode="promise_in_bounds") for x in (k, v))
    old_k = lax.dynamic_slice(keys, (slot, 0, 0, first), (1, *keys.shape[1:3], tokens))
    old_v = lax.dynamic_slice(values, (slot, 0, first, 0), (1, values.shape[1], tokens, values.shape[3]))
    new = (
        jnp.where(ours[None, None, None, :], k.transpose(1, 2, 0)[None].astype(keys.dtype), old_k),
        jnp.where(ours[None, None, :, None], v.transpose(1, 0, 2)[None].astype(values.dtype), old_v),
    )
    k, v = lax.optimization_barrier(new)
    return lax.dynamic_update_slice(keys, k, (slot, 0, 0, first)), lax.dynamic_update_slice(
        values, v, (slot, 0, first, 0)
    )
