"""The text half of the float64 specification: embedding, rotary tables, decoder layers, head (contract section 7).

Axes: T new positions, S positions so far, d width, H heads, K kv heads, h head dim, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from molmo2_iree.parity.specification_files import Original, silu, softmax

TRUNK = "model.transformer."

Rows = tuple[np.ndarray, np.ndarray]
"""Cache rows of one layer: keys [K, h, S] and values [K, S, h], after norm and rotation."""


def embed(original: Original, ids: np.ndarray) -> np.ndarray:
    """ids [T] -> [T, d] from the base table and, above its rows, the extra one; -1 counts as 0."""
    table = np.concatenate([original.array(f"{TRUNK}wte.embedding"), original.array(f"{TRUNK}wte.new_embedding")])
    return table[np.where(ids == -1, 0, ids)]


def prefill_mask(types: np.ndarray, *, causal_image: bool) -> np.ndarray:
    """types [S] -> visible [S, S], row sees column: causal, or both of type 1 (contract 7.1).

    types [0, 1, 1] give rows [1 0 0], [1 1 1], [1 1 1]; causal_image gives the lower triangle.
    """
    causal = np.tri(len(types), dtype=bool)
    image = np.asarray(types) == 1
    return causal if causal_image else causal | (image[:, None] & image[None, :])


def decoder(
    original: Original, x: np.ndarray, visible: np.ndarray, past: Sequence[Rows] | None = None
) -> tuple[list[np.ndarray], list[Rows], np.ndarray]:
    """x [T, d] after ``past`` rows, visible [T, S] -> every layer's output [T, d], all cache rows, logits [T, V]."""
    config = original.config["text_config"]
    states, rows = [], []
    for layer in range(config["num_hidden_layers"]):
        x, new = _layer(original, x, layer, visible, None if past is None else past[layer])
        states.append(x)
        rows.append(new)
    x = _rms_norm(original, x, f"{TRUNK}ln_f")
    return states, rows, original.linear(x, "lm_head", bias=False)


def _layer(
    original: Original, x: np.ndarray, layer: int, visible: np.ndarray, past: Rows | None
) -> tuple[np.ndarray, Rows]:
    name = f"{TRUNK}blocks.{layer}."
    after = original.config["text_config"]["norm_after"]

    def norm(value: np.ndarray, part: str) -> np.ndarray:
        return _rms_norm(original, value, name + part)

    update, rows = _attention(original, x if after else norm(x, "attn_norm"), layer, visible, past)
    x = x + (norm(update, "attn_norm") if after else update)
    update = _mlp(original, x if after else norm(x, "ff_norm"), f"{name}mlp.")
    return x + (norm(update, "ff_norm") if after else update), rows


def _mlp(original: Original, x: np.ndarray, name: str) -> np.ndarray:
    """First half of ff_proj is linear, the second half is the gate."""
    linear, gate = np.split(original.linear(x, f"{name}ff_proj", bias=False), 2, axis=-1)
    return original.linear(silu(gate) * linear, f"{name}ff_out", bias=False)


def _rms_norm(original: Original, x: np.ndarray, name: str) -> np.ndarray:
    mean_square = (x**2).mean(-1, keepdims=True)
    scaled = x / np.sqrt(mean_square + original.config["text_config"]["layer_norm_eps"])
    return scaled * original.array(f"{name}.weight")


def _attention(
    original: Original, x: np.ndarray, layer: int, visible: np.ndarray, past: Rows | None
) -> tuple[np.ndarray, Rows]:
    """x [T, d], visible [T, S] -> [T, d] and the layer's rows with the new ones appended."""
    config = original.config["text_config"]
    heads, kv_heads, size = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    name = f"{TRUNK}blocks.{layer}.self_attn."
    projected = original.linear(x, f"{name}att_proj", bias=False)
    q, k, v = np.split(projected, [heads * size, (heads + kv_heads) * size], axis=-1)
    start = 0 if past is None else past[0].shape[-1]
    q, k = (
        _rotate(_qk_norm(original, part, name + norm), rotary_table(config, layer, start, len(x)))
        for part, norm in ((q, "q_norm"), (k, "k_norm"))
    )
    keys = k.transpose(1, 2, 0)
    values = v.reshape(len(x), kv_heads, size).transpose(1, 0, 2)
    if past is not None:
        keys, values = np.concatenate([past[0], keys], 2), np.concatenate([past[1], values], 1)
    joined = np.empty((len(x), heads, size))
    for head in range(heads):
        own = head * kv_heads // heads
        joined[:, head] = softmax(q[:, head] @ keys[own] * size**-0.5, visible) @ values[own]
    return original.linear(joined.reshape(len(x), -1), f"{name}attn_out", bias=False), (keys, values)


def _qk_norm(original: Original, x: np.ndarray, name: str) -> np.ndarray:
    """x [T, heads * h] -> [T, heads, h]: "qwen3" norms each head, "olmo" the full width before the split."""
    config = original.config["text_config"]
    split = x.reshape(len(x), -1, config["head_dim"])
    if not config["use_qk_norm"]:
        return split
    if config["qk_norm_type"] == "olmo":
        return _rms_norm(original, x, name).reshape(split.shape)
    return _rms_norm(original, split, name)


def _rotate(x: np.ndarray, table: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """x [T, heads, h] by cos and sin [T, h / 2]: dimension i turns with i + h / 2."""
    cos, sin = table[0][:, None, :], table[1][:, None, :]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotary_table(config: dict[str, Any], layer: int, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [count, h / 2] from position ``start``, each step rounded to float32 as the contract says."""
    size = config["head_dim"]
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    steps = (float(config["rope_theta"]) ** exponents.astype(np.float64)).astype(np.float32)
    inverse, factor = np.float32(1) / steps, np.float32(1)
    scaling, listed = config["rope_scaling"], config["rope_scaling_layers"]
    if scaling is not None and (listed is None or layer in listed):
        inverse, factor = _yarn(config, scaling, steps), np.float32(scaling["attention_factor"])
    positions = np.arange(start, start + count, dtype=np.float32)
    angles = (positions[:, None] * inverse).astype(np.float64)
    cos, sin = np.cos(angles).astype(np.float32) * factor, np.sin(angles).astype(np.float32) * factor
    return cos.astype(np.float64), sin.astype(np.float64)


def _yarn(config: dict[str, Any], scaling: dict[str, Any], steps: np.ndarray) -> np.ndarray:
    """Inverse frequencies [h / 2]: slow dimensions stretched by the factor, fast ones kept, a ramp between."""
    size, base = config["head_dim"], math.log(config["rope_theta"])

    def dimension(turns: float) -> float:
        wavelength = scaling["original_max_position_embeddings"] / (2 * math.pi * turns)
        return size * math.log(wavelength) / (2 * base)

    low = max(math.floor(dimension(scaling["beta_fast"])), 0)
    high = min(math.ceil(dimension(scaling["beta_slow"])), size - 1)
    width = np.float32(high - low if high != low else 0.001)
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - np.float32(low)) / width, 0, 1)
    kept, stretched = np.float32(1) / steps, np.float32(1) / (np.float32(scaling["factor"]) * steps)
    return stretched * ramp + kept * (np.float32(1) - ramp)
