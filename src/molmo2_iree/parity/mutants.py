"""The catalogue of wrong models: each a small named edit of the source, and the first stage that must notice it.

An edit replaces ``old`` by ``new`` in one file; ``old`` stands there exactly once (a test holds it). The mutated source
is traced, compiled and run like the real one. ``case`` is the smallest case in which the mistake can show.
"""

from dataclasses import dataclass

TEXT, VISION, CONNECTOR = "model/text.py", "model/vision.py", "model/connector.py"
CACHE, LAYERS, ROTATION, PROGRAMS = "model/cache.py", "model/layers.py", "model/rotation.py", "model/programs.py"
CROPS, LAYOUT = "preprocess/crops.py", "preprocess/layout.py"


REFUSED = "refused before any module"
"""Where a mutant is caught whose own host checks refuse the request it prepared."""


@dataclass(frozen=True)
class Mutant:
    """``stages`` are compiled anew; none for an edit of host code."""

    name: str
    file: str
    old: str
    new: str
    stages: tuple[str, ...]
    case: str
    first: str


_VISION, _CONNECTOR, _MERGE, _DECODER = ("vision",), ("connector",), ("merge",), ("prefill", "extend", "decode")

MUTANTS: tuple[Mutant, ...] = (
    # --- host side -----------------------------------------------------------------------------------------------
    Mutant(
        "patches flattened channel first",
        CROPS,
        ".transpose(0, 2, 1, 3, 4)",
        ".transpose(0, 2, 4, 1, 3)",
        (),
        "photo",
        "input.patches",
    ),
    Mutant(
        "a column token too many in the low-res view",
        LAYOUT,
        "start, processor.single_crop_column_tokens, tokens)",
        "start, not processor.single_crop_column_tokens, tokens)",
        (),
        "photo",
        "input.ids",
    ),
    Mutant(
        "column tokens of the canvas left out",
        LAYOUT,
        "tokens.image_start, processor.column_tokens, tokens)",
        "tokens.image_start, not processor.column_tokens, tokens)",
        (),
        "photo",
        "input.ids",
    ),
    Mutant(
        "types computed without the end token",
        LAYOUT,
        "np.isin(ids, tokens.image_part)",
        "np.isin(ids, [t for t in tokens.image_part if t != tokens.image_end])",
        (),
        "photo",
        REFUSED,
    ),
    # --- vision --------------------------------------------------------------------------------------------------
    Mutant(
        "position table transposed",
        VISION,
        'taps["embedded"] + p["vit.position"]',
        'taps["embedded"] + p["vit.position"].reshape(*v.grid, -1).swapaxes(0, 1).reshape(v.patches, -1)',
        _VISION,
        "photo",
        "vision.positioned",
    ),
    Mutant(
        "sigmoid GELU",
        LAYERS,
        "return 0.5 * x * (1 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))",
        "return x * jax.nn.sigmoid(1.702 * x)",
        _VISION,
        "photo",
        "vision.block.0",
    ),
    Mutant(
        "exact GELU",
        LAYERS,
        "return 0.5 * x * (1 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))",
        "return jax.nn.gelu(x, approximate=False)",
        _VISION,
        "photo",
        "vision.block.0",
    ),
    Mutant(
        "padding patches attended",
        VISION,
        "real = jnp.arange(v.patches + padding) < v.patches if padding else None",
        "real = None",
        _VISION,
        "photo",
        "vision.block.0",
    ),
    Mutant(
        "selected layers one too low",
        VISION,
        "for i in v.layers], -1)",
        "for i in (j - 1 for j in v.layers)], -1)",
        _VISION,
        "photo",
        "vision.features",
    ),
    Mutant(
        "selected layers in another order",
        VISION,
        "for i in v.layers], -1)",
        "for i in v.layers[::-1]], -1)",
        _VISION,
        "photo",
        "vision.features",
    ),
    Mutant(
        "the first selected layer repeated",
        VISION,
        "for i in v.layers], -1)",
        "for i in [v.layers[0]] * len(v.layers)], -1)",
        _VISION,
        "photo",
        "vision.features",
    ),
    # --- connector -----------------------------------------------------------------------------------------------
    Mutant(
        "clamp without mask",
        CONNECTOR,
        "return mask, jnp.where(mask[..., None], rows, 0.0)",
        "return mask, rows",
        _CONNECTOR,
        "photo",
        "connector.gathered",
    ),
    Mutant(
        "-1 read as the last patch",
        CONNECTOR,
        "return mask, jnp.where(mask[..., None], rows, 0.0)",
        'return mask, flat.at[groups % flat.shape[0]].get(mode="promise_in_bounds")',
        _CONNECTOR,
        "photo",
        "connector.gathered",
    ),
    Mutant(
        "denominator four for every group",
        CONNECTOR,
        "jnp.maximum(jnp.sum(mask.astype(jnp.float32), -1), 1.0)",
        "jnp.full(mask.shape[0], 4.0)",
        _CONNECTOR,
        "photo",
        "connector.query",
    ),
    Mutant(
        "no guard for a group without patches",
        CONNECTOR,
        "jnp.maximum(jnp.sum(mask.astype(jnp.float32), -1), 1.0)",
        "jnp.sum(mask.astype(jnp.float32), -1)",
        _CONNECTOR,
        "photo",
        "connector.query.table",
    ),
    Mutant(
        "pooling mask dropped",
        CONNECTOR,
        "mask if c.pooling_mask else None)",
        "None)",
        _CONNECTOR,
        "photo",
        "connector.pooled",
    ),
    Mutant(
        "projector gate and linear branch swapped",
        CONNECTOR,
        'silu(linear(pooled, p, "projector.gate")) * linear(pooled, p, "projector.up")',
        'silu(linear(pooled, p, "projector.up")) * linear(pooled, p, "projector.gate")',
        _CONNECTOR,
        "photo",
        "connector.tokens",
    ),
    Mutant(
        "a group without patches keeps its row",
        CONNECTOR,
        'jnp.where(valid[:, None], linear(hidden, p, "projector.down"), 0.0)',
        'linear(hidden, p, "projector.down")',
        _CONNECTOR,
        "photo",
        "connector.tokens.table",
    ),
    # --- merge ---------------------------------------------------------------------------------------------------
    Mutant(
        "image tokens replace the embedding",
        TEXT,
        "embeddings = embed(t, p, ids) + jnp.where(taken[:, None], added, 0.0)",
        "embeddings = jnp.where(taken[:, None], added, embed(t, p, ids))",
        _MERGE,
        "photo",
        "merge.embeddings",
    ),
    Mutant(
        "extra embedding rows zeroed",
        TEXT,
        "return jnp.where((ids < t.vocabulary)[:, None], base, extra)",
        "return jnp.where((ids < t.vocabulary)[:, None], base, extra * 0)",
        _MERGE,
        "photo",
        "merge.embeddings",
    ),
    Mutant(
        "extra embedding rows shifted by one",
        TEXT,
        "jnp.clip(ids - t.vocabulary, 0",
        "jnp.clip(ids - t.vocabulary + 1, 0",
        _MERGE,
        "photo",
        "merge.embeddings",
    ),
    Mutant(
        "image tokens shifted by one",
        TEXT,
        "jnp.sum(jnp.where(before & is_patch[None, :], 1, 0), 1) - 1",
        "jnp.sum(jnp.where(before & is_patch[None, :], 1, 0), 1)",
        _MERGE,
        "photo",
        "merge.image_rank",
    ),
    # --- decoder -------------------------------------------------------------------------------------------------
    Mutant(
        "causal prefill mask",
        TEXT,
        "if not causal_image:",
        "if False:",
        ("prefill",),
        "photo",
        "prefill.layer.0",
    ),
    Mutant(
        "one mask block for each image",
        TEXT,
        "visible = visible | ((types[:, None] == 1) & (types[None, :] == 1))",
        "visible = visible | ((types[:, None] == 1) & (types[None, :] == 1)"
        " & (jnp.sum(jnp.where(visible & (types[None, :] == 0), 1, 0), 1)[:, None]"
        " == jnp.sum(jnp.where(visible & (types[None, :] == 0), 1, 0), 1)[None, :]))",
        ("prefill",),
        "two-pictures",
        "prefill.layer.0",
    ),
    Mutant(
        "gate and linear halves swapped",
        TEXT,
        "up, gate = both[:, : t.intermediate], both[:, t.intermediate :]",
        "gate, up = both[:, : t.intermediate], both[:, t.intermediate :]",
        _DECODER,
        "text",
        "prefill.layer.0",
    ),
    Mutant(
        "rotation of interleaved pairs",
        TEXT,
        "a, b = x[..., :half], x[..., half:]",
        "a, b = x[..., ::2], x[..., 1::2]",
        _DECODER,
        "text",
        "prefill.layer.0",
    ),
    Mutant(
        "position off by one after an image",
        TEXT,
        "rows = jnp.arange(embeddings.shape[0])\n",
        "rows = jnp.arange(embeddings.shape[0]) - (jnp.cumsum(types) >= jnp.sum(types)) * (types == 0)"
        " * (jnp.sum(types) > 0)\n",
        ("prefill",),
        "photo",
        "prefill.layer.0",
    ),
    Mutant(
        "query heads dealt round the kv heads",
        TEXT,
        "return q.reshape(q.shape[0], t.kv_heads, t.heads // t.kv_heads, t.head_dim)",
        "return q.reshape(q.shape[0], t.heads // t.kv_heads, t.kv_heads, t.head_dim).swapaxes(1, 2)",
        _DECODER,
        "text",
        "prefill.layer.0",
    ),
    Mutant(
        "norms before and after swapped",
        TEXT,
        "if t.norm_after:",
        "if not t.norm_after:",
        _DECODER,
        "text",
        "prefill.layer.0",
    ),
    Mutant(
        "logits of the last bucket row",
        TEXT,
        'last = lax.dynamic_slice_in_dim(x, length - 1, 1, 0)\n    taps["all_logits"]',
        'last = x[-1:]\n    taps["all_logits"]',
        ("prefill",),
        "text",
        "prefill.logits.module",
    ),
    Mutant(
        "prefill writes one row late",
        TEXT,
        "k, v, slot, jnp.int32(0), length",
        "k, v, slot, jnp.int32(1), length",
        ("prefill",),
        "text",
        "prefill.keys.0",
    ),
    Mutant(
        "padding rows written to the cache",
        TEXT,
        "k, v, slot, jnp.int32(0), length",
        "k, v, slot, jnp.int32(0), jnp.int32(k.shape[0])",
        ("prefill",),
        "text",
        "prefill.untouched.0",
    ),
    Mutant(
        "every prompt lands in slot 0",
        TEXT,
        "k, v, slot, jnp.int32(0), length",
        "k, v, slot * 0, jnp.int32(0), length",
        ("prefill",),
        "photo",
        "prefill.keys.0",
    ),
    Mutant(
        "decode writes one row late",
        CACHE,
        "at = positions[:, None, None]",
        "at = positions[:, None, None] + 1",
        ("decode",),
        "text",
        "decode.logits",
    ),
    Mutant(
        "decode does not see its own token",
        TEXT,
        "jnp.arange(context)[None, None, None, :] <= positions",
        "jnp.arange(context)[None, None, None, :] < positions",
        ("decode",),
        "text",
        "decode.logits",
    ),
    Mutant(
        "decode sees a row of the slot's former owner",
        TEXT,
        "jnp.arange(context)[None, None, None, :] <= positions",
        "jnp.arange(context)[None, None, None, :] - 1 <= positions",
        ("decode",),
        "text",
        "decode.logits",
    ),
    Mutant(
        "appended rows see the rows after them",
        TEXT,
        "visible = jnp.arange(context)[None, :] <= positions[:, None]",
        "visible = jnp.arange(context)[None, :] < start + length",
        ("extend",),
        "text",
        "extend.logits",
    ),
)
