"""The embedded checkpoint's tensors: shapes by original name (contract section 2), values from a seed, file bytes.

Values are integers from a bit generator times a power of two, so no rounding and no mathematics library takes part:
every machine makes the same bytes. A tensor depends on the seed and its own name only.
"""

import hashlib
import json
import math
from collections.abc import Mapping

import numpy as np

from molmo2_iree.build.embedded_config import Variant

TEXT = "model.transformer."
VISION = "model.vision_backbone."

STEP = 18
"""Values are whole multiples of 2 ** -STEP, 18 bits at most, times a tensor's own power of two: exact in float32."""

DRAW = "9"
"""Which draw of weights a seed stands for: picked so that no answer of the gates' cases hangs on a near tie."""

GAINS = {"patch_embedding.weight": 1, "wte.embedding": 1, "attn_out.weight": 1, "lm_head.weight": 1}
"""Powers of two on top of the usual spread, by the end of a tensor's name."""

CENTRES = {"q_norm.weight": 1.75, "k_norm.weight": 1.75, "norm.weight": 1.0, "ln_f.weight": 1.0}
"""Centre of a norm's weight by the end of its name. Sharper attention lets the pictures reach the logits."""


def shapes(variant: Variant) -> dict[str, tuple[int, ...]]:
    """Shape of every stored tensor, sorted by its original name. Linear layers are [out, in]."""
    table = _text_shapes(variant) | _vit_shapes(variant) | _connector_shapes(variant)
    return dict(sorted(table.items()))


def _text_shapes(variant: Variant) -> dict[str, tuple[int, ...]]:
    d, hd, inner = variant.text_width, variant.head_dim, variant.text_intermediate
    query, key = variant.heads * hd, variant.kv_heads * hd
    table: dict[str, tuple[int, ...]] = {
        f"{TEXT}wte.embedding": (variant.vocabulary, d),
        f"{TEXT}wte.new_embedding": (variant.extra_vocabulary, d),
        f"{TEXT}ln_f.weight": (d,),
        "lm_head.weight": (variant.vocabulary, d),
    }
    for layer in range(variant.text_layers):
        block = f"{TEXT}blocks.{layer}."
        table |= {
            f"{block}attn_norm.weight": (d,),
            f"{block}ff_norm.weight": (d,),
            f"{block}self_attn.att_proj.weight": (query + 2 * key, d),
            f"{block}self_attn.attn_out.weight": (d, query),
            f"{block}mlp.ff_proj.weight": (2 * inner, d),
            f"{block}mlp.ff_out.weight": (d, inner),
        }
        if variant.qk_norm != "none":
            full = variant.qk_norm == "olmo"
            table[f"{block}self_attn.q_norm.weight"] = (query if full else hd,)
            table[f"{block}self_attn.k_norm.weight"] = (key if full else hd,)
    return table


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _vit_shapes(variant: Variant) -> dict[str, tuple[int, ...]]:
    width, inner, joined = variant.vit_width, variant.vit_intermediate, variant.vit_heads * variant.vit_head_dim
    vit = f"{VISION}image_vit."
    table = _linear(f"{vit}patch_embedding", width, 3 * variant.patch_size**2)
    table[f"{vit}positional_embedding"] = (variant.grid**2, width)
    for index in range(variant.blocks):
        block = f"{vit}transformer.resblocks.{index}."
        for norm in ("attention_norm", "ffn_norm"):
            table |= {f"{block}{norm}.weight": (width,), f"{block}{norm}.bias": (width,)}
        for name in ("wq", "wk", "wv"):
            table |= _linear(f"{block}attention.{name}", joined, width)
        table |= _linear(f"{block}attention.wo", width, joined)
        table |= _linear(f"{block}feed_forward.w1", inner, width)
        table |= _linear(f"{block}feed_forward.w2", width, inner)
    return table


def _connector_shapes(variant: Variant) -> dict[str, tuple[int, ...]]:
    width, inner, joined = variant.vit_width, variant.adapter_intermediate, variant.vit_heads * variant.vit_head_dim
    pool, projector = f"{VISION}image_pooling_2d.", f"{VISION}image_projector."
    table: dict[str, tuple[int, ...]] = {}
    for name in ("wq", "wk", "wv"):
        table |= _linear(f"{pool}{name}", joined, width * len(variant.vit_layers))
    table |= _linear(f"{pool}wo", width, joined)
    return table | {
        f"{projector}w1.weight": (inner, width),
        f"{projector}w2.weight": (variant.text_width, inner),
        f"{projector}w3.weight": (inner, width),
    }


def tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32 values of one tensor, bell-shaped around 0 or a norm's centre."""
    count = math.prod(shape)
    key = int.from_bytes(hashlib.sha256(f"{DRAW}/{seed}/{name}".encode()).digest()[:16], "little")
    raw = np.random.PCG64(key).random_raw(count)
    quarters = (raw[:, None] >> np.array([0, 16, 32, 48], np.uint64)) & np.uint64(0xFFFF)
    centred = quarters.astype(np.int64).sum(axis=1) - 2 * 0xFFFF
    # The sum of four 16-bit draws has a spread of 2 ** 16 / sqrt(3), so ``unit`` has 0.14 and stays within 0.5.
    unit = centred.astype(np.float64) * 2.0**-STEP
    values = _by_end(CENTRES, name, 0.0) + unit * 2.0 ** _exponent(name, shape)
    return values.astype(np.float32).reshape(shape)


def _by_end(table: Mapping[str, float], name: str, other: float) -> float:
    return next((value for end, value in table.items() if name.endswith(end)), other)


def _exponent(name: str, shape: tuple[int, ...]) -> int:
    """Power of two of a tensor: vectors 0, tables 2, matrices about the square root of their fan-in, and the gains."""
    gain = int(_by_end(GAINS, name, 0))
    if len(shape) == 1:
        return gain
    if name.endswith("embedding"):
        return 2 + gain
    return 3 - shape[1].bit_length() // 2 + gain


def tensors(variant: Variant, seed: int) -> dict[str, np.ndarray]:
    """Every tensor by its original name, in name order."""
    return {name: tensor(name, shape, seed) for name, shape in shapes(variant).items()}


def safetensors_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file: 8-byte header length, JSON header padded to 8 bytes, little-endian data in this order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks, end = [], 0
    for name, array in arrays.items():
        chunk = array.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + len(chunk)]}
        chunks.append(chunk)
        end += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(chunks)


def weight_files(variant: Variant, seed: int) -> dict[str, bytes]:
    """The weight files by name: one, or shards that take the tensors in turn, with an index."""
    arrays = tensors(variant, seed)
    if variant.shards == 1:
        return {"model.safetensors": safetensors_bytes(arrays)}
    names = [f"model-{k + 1:05}-of-{variant.shards:05}.safetensors" for k in range(variant.shards)]
    owner = {name: names[k % variant.shards] for k, name in enumerate(arrays)}
    files = {
        shard: safetensors_bytes({name: array for name, array in arrays.items() if owner[name] == shard})
        for shard in names
    }
    total = sum(array.size for array in arrays.values())
    index = {"metadata": {"total_parameters": total, "total_size": 4 * total}, "weight_map": owner}
    files["model.safetensors.index.json"] = (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
    return files
