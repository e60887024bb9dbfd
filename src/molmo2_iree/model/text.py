"""The decoder: merge, prefill, extend and decode.

Axes: S prompt tokens, T new tokens, B slots advanced, L slots of the cache, X context rows read, d width, H heads,
K kv heads, R query heads of one kv head, h head dim, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from molmo2_iree.architecture import Text
from molmo2_iree.model.cache import write_slots, write_span
from molmo2_iree.model.layers import Parameters, masked_softmax, matmul, rms_norm, silu, split_heads
from molmo2_iree.model.rotation import rotation_kind
from molmo2_iree.model.vision import Taps

Cache = list[jax.Array]
Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]
"""(layer, q [n, H, h], k [n, K, h], v [n, K, h]) -> [n, H * h]: stores k and v and mixes what the row may see."""

EXACT = lax.Precision.HIGHEST


def embed(t: Text, p: Parameters, ids: jax.Array) -> jax.Array:
    """ids [n] -> [n, d]: rows of the base table, then of the extra table; id -1 counts as 0 (contract section 7)."""
    base = p["embedding.base"].at[jnp.clip(ids, 0, t.vocabulary - 1)].get(mode="promise_in_bounds")
    extra_row = jnp.clip(ids - t.vocabulary, 0, t.extra_vocabulary - 1)
    extra = p["embedding.extra"].at[extra_row].get(mode="promise_in_bounds")
    return jnp.where((ids < t.vocabulary)[:, None], base, extra).astype(jnp.float32)


def merge(
    t: Text, image_patch: int, p: Parameters, ids: jax.Array, image_tokens: jax.Array, count: jax.Array
) -> tuple[jax.Array, Taps]:
    """ids [S], image tokens [S, d] of which ``count`` are real -> embeddings [S, d] (contract section 6, merge).

    The k-th position whose id is ``image_patch`` gets the k-th image token ADDED. Ranks come from a triangular sum,
    not from a cumulative one: ids [p, a, p] with count 2 have ranks [0, 0, 1].
    """
    size = ids.shape[0]
    is_patch = ids == image_patch
    before = jnp.arange(size)[None, :] <= jnp.arange(size)[:, None]
    rank = jnp.sum(jnp.where(before & is_patch[None, :], 1, 0), 1) - 1
    taken = is_patch & (rank < count)
    rank = jnp.clip(rank, 0, size - 1)
    added = image_tokens.at[rank].get(mode="promise_in_bounds")
    embeddings = embed(t, p, ids) + jnp.where(taken[:, None], added, 0.0)
    return embeddings, {"image_rank": jnp.where(taken, rank, -1)}


def prefill(
    t: Text,
    causal_image: bool,
    p: Parameters,
    embeddings: jax.Array,
    types: jax.Array,
    length: jax.Array,
    slot: jax.Array,
    cache: Cache,
) -> tuple[jax.Array, Cache, Taps]:
    """embeddings [S, d], types [S], length, slot, cache -> logits [V] of the last real row, cache."""
    rows = jnp.arange(embeddings.shape[0])
    visible = prompt_mask(types, length, causal_image)
    cache = list(cache)

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (stored(x, cache[2 * layer]) for x in (k, v))
        cache[2 * layer : 2 * layer + 2] = write_span(
            cache[2 * layer], cache[2 * layer + 1], k, v, slot, jnp.int32(0), length
        )
        scores = jnp.einsum("qkrd,skd->krqs", grouped(t, q), k, precision=EXACT) * t.head_dim**-0.5
        weights = masked_softmax(scores, visible)
        return jnp.einsum("krqs,skd->qkrd", weights, v, precision=EXACT).reshape(q.shape[0], -1)

    x, taps = layers(t, p, embeddings, rows, attend)
    last = lax.dynamic_slice_in_dim(x, length - 1, 1, 0)
    taps["all_logits"] = head(t, p, x)
    return head(t, p, last)[0], cache, taps


def extend(
    t: Text,
    context: int,
    p: Parameters,
    ids: jax.Array,
    start: jax.Array,
    length: jax.Array,
    slot: jax.Array,
    cache: Cache,
) -> tuple[jax.Array, Cache, Taps]:
    """ids [T] of which ``length`` are real, appended at row ``start`` of a slot -> logits [V], cache.

    Reads the first X = ``context`` rows; start + length must not exceed it. Causal: new rows are text.
    """
    positions = jnp.minimum(start + jnp.arange(ids.shape[0]), t.max_positions - 1)
    visible = jnp.arange(context)[None, :] <= positions[:, None]
    cache = list(cache)

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        keys, values = write_span(cache[2 * layer], cache[2 * layer + 1], k, v, slot, start, length)
        cache[2 * layer : 2 * layer + 2] = keys, values
        keys = lax.dynamic_slice(keys, (slot, 0, 0, 0), (1, t.kv_heads, t.head_dim, context))[0]
        values = lax.dynamic_slice(values, (slot, 0, 0, 0), (1, t.kv_heads, context, t.head_dim))[0]
        keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)
        scores = jnp.einsum("qkrd,kds->krqs", grouped(t, q), keys, precision=EXACT) * t.head_dim**-0.5
        weights = masked_softmax(scores, visible)
        return jnp.einsum("krqs,ksd->qkrd", weights, values, precision=EXACT).reshape(q.shape[0], -1)

    x, taps = layers(t, p, embed(t, p, ids), positions, attend)
    last = lax.dynamic_slice_in_dim(x, length - 1, 1, 0)
    return head(t, p, last)[0], cache, taps


def decode(
    t: Text, context: int, p: Parameters, ids: jax.Array, positions: jax.Array, active: jax.Array, cache: Cache
) -> tuple[jax.Array, Cache, Taps]:
    """One token for each of slots 0..B-1: ids, positions, active [B] -> logits [B, V], cache.

    Reads the first X = ``context`` rows of each slot; an inactive row's logits mean nothing and its cache is kept.
    """
    batch = ids.shape[0]
    visible = jnp.arange(context)[None, None, None, :] <= positions[:, None, None, None]
    cache = list(cache)

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        keys, values = write_slots(cache[2 * layer], cache[2 * layer + 1], k, v, positions, active)
        cache[2 * layer : 2 * layer + 2] = keys, values
        keys = keys[:batch, :, :, :context].astype(jnp.float32)
        values = values[:batch, :, :context].astype(jnp.float32)
        scores = jnp.einsum("bkrd,bkds->bkrs", grouped(t, q), keys, precision=EXACT) * t.head_dim**-0.5
        weights = masked_softmax(scores, visible)
        return jnp.einsum("bkrs,bksd->bkrd", weights, values, precision=EXACT).reshape(batch, -1)

    x, taps = layers(t, p, embed(t, p, ids), positions, attend)
    return head(t, p, x), cache, taps


def prompt_mask(types: jax.Array, length: jax.Array, causal_image: bool) -> jax.Array:
    """visible [S, S]: query a sees key b if b is real and (b <= a, or both are of the image part).

    Types [1, 1, 0] of length 3 give [[1, 1, 0], [1, 1, 0], [1, 1, 1]]: one block for all images of a prompt
    (contract section 7.1). With ``causal_image`` only b <= a counts.
    """
    rows = jnp.arange(types.shape[0])
    visible = rows[None, :] <= rows[:, None]
    if not causal_image:
        visible = visible | ((types[:, None] == 1) & (types[None, :] == 1))
    return visible & (rows[None, :] < length)


def layers(t: Text, p: Parameters, x: jax.Array, positions: jax.Array, attend: Attend) -> tuple[jax.Array, Taps]:
    """x [n, d] through every layer; taps hold each layer's output."""
    taps: Taps = {}
    for i in range(t.layers):
        name = f"layers.{i}"
        attention = partial(_attention, t, p, name, i, positions=positions, attend=attend)
        x = residual(t, x, p[f"{name}.attention_norm"], attention)
        x = residual(t, x, p[f"{name}.mlp_norm"], partial(_mlp, t, p, name))
        taps[f"layer.{i}"] = x
    return x, taps


def residual(t: Text, x: jax.Array, norm: jax.Array, inner: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """x + inner(norm(x)), or x + norm(inner(x)) where the norm comes after."""
    if t.norm_after:
        return x + rms_norm(inner(x), norm, t.eps)
    return x + inner(rms_norm(x, norm, t.eps))


def head(t: Text, p: Parameters, x: jax.Array) -> jax.Array:
    """x [n, d] -> logits [n, V]."""
    return matmul(rms_norm(x, p["norm.weight"], t.eps), p["head.weight"])


def _mlp(t: Text, p: Parameters, name: str, x: jax.Array) -> jax.Array:
    both = matmul(x, p[f"{name}.mlp.up_gate"])
    up, gate = both[:, : t.intermediate], both[:, t.intermediate :]
    return matmul(silu(gate) * up, p[f"{name}.mlp.down"])


def _attention(
    t: Text, p: Parameters, name: str, layer: int, x: jax.Array, *, positions: jax.Array, attend: Attend
) -> jax.Array:
    q_width, kv_width = t.heads * t.head_dim, t.kv_heads * t.head_dim
    both = matmul(x, p[f"{name}.attention.qkv"])
    q, k, v = both[:, :q_width], both[:, q_width : q_width + kv_width], both[:, q_width + kv_width :]
    if t.qk_norm == "full":
        q, k = (rms_norm(y, p[f"{name}.attention.{z}_norm"], t.eps) for y, z in ((q, "q"), (k, "k")))
    q, k, v = split_heads(q, t.heads), split_heads(k, t.kv_heads), split_heads(v, t.kv_heads)
    if t.qk_norm == "head":
        q, k = (rms_norm(y, p[f"{name}.attention.{z}_norm"], t.eps) for y, z in ((q, "q"), (k, "k")))
    kind = rotation_kind(t, layer)
    cos, sin = (p[f"rope.{kind}.{part}"].at[positions].get(mode="promise_in_bounds") for part in ("cos", "sin"))
    return matmul(attend(layer, rotate(q, cos, sin), rotate(k, cos, sin), v), p[f"{name}.attention.out"])


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x [n, H, h], cos and sin [n, h / 2]: dimension i pairs with i + h / 2 (contract section 7)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def grouped(t: Text, q: jax.Array) -> jax.Array:
    """q [n, H, h] -> [n, K, R, h]: query head j reads kv head j // R."""
    return q.reshape(q.shape[0], t.kv_heads, t.heads // t.kv_heads, t.head_dim)


def stored(x: jax.Array, like: jax.Array) -> jax.Array:
    """x as the cache will give it back, so that prefill and later steps see the same rows."""
    return x.astype(like.dtype).astype(jnp.float32)
