"""The vision half of the float64 specification: ViT (contract section 5), pooling and projector (section 6).

Axes: C crops, N patches, E values of a patch, D ViT width, F joined features, G groups, P patches of a group,
H heads, h head dim, d text width.
"""

import math

import numpy as np

from molmo2_iree.parity.specification_files import Original, silu, softmax

VIT = "model.vision_backbone.image_vit."
POOL = "model.vision_backbone.image_pooling_2d."
PROJECTOR = "model.vision_backbone.image_projector."


def vision(original: Original, patches: np.ndarray) -> dict[str, np.ndarray]:
    """patches [C, N, E] -> embedded, positioned, block.{i} [C, N, D] and features [C, N, F]."""
    config = original.config["vit_config"]
    declared = config["num_hidden_layers"]
    selected = [layer + declared if layer < 0 else layer for layer in original.config["adapter_config"]["vit_layers"]]
    x = original.linear(patches.astype(np.float64), f"{VIT}patch_embedding", bias=True)
    result = {"vision.embedded": x}
    x = x + original.array(f"{VIT}positional_embedding")
    result["vision.positioned"] = x
    for index in range(max(selected) + 1):
        x = _block(original, x, f"{VIT}transformer.resblocks.{index}.")
        result[f"vision.block.{index}"] = x
    result["vision.features"] = np.concatenate([result[f"vision.block.{index}"] for index in selected], axis=-1)
    return result


def _block(original: Original, x: np.ndarray, name: str) -> np.ndarray:
    """One pre-norm encoder block on x [C, N, D]."""
    x = x + _self_attention(original, _layer_norm(original, x, f"{name}attention_norm"), f"{name}attention.")
    hidden = original.linear(_layer_norm(original, x, f"{name}ffn_norm"), f"{name}feed_forward.w1", bias=True)
    hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    return x + original.linear(hidden, f"{name}feed_forward.w2", bias=True)


def _layer_norm(original: Original, x: np.ndarray, name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    scaled = centred / np.sqrt(variance + original.config["vit_config"]["layer_norm_eps"])
    return scaled * original.array(f"{name}.weight") + original.array(f"{name}.bias")


def _self_attention(original: Original, x: np.ndarray, name: str) -> np.ndarray:
    """x [C, N, D]; a crop sees all of itself and nothing of the others."""
    config = original.config["vit_config"]
    heads, size = config["num_attention_heads"], config["head_dim"]
    q, k, v = (original.linear(x, f"{name}w{part}", bias=True) for part in "qkv")
    joined = np.empty_like(q)
    for crop in range(len(x)):
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            weights = softmax(q[crop][:, own] @ k[crop][:, own].T * size**-0.5)
            joined[crop][:, own] = weights @ v[crop][:, own]
    return original.linear(joined, f"{name}wo", bias=True)


def connector(original: Original, features: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    """features [C, N, F] of one image, groups [G, P] of its patch numbers or -1 -> gathered to tokens and valid.

    Without pooling_attention_mask the query is the mean over all P slots, empty ones as zeros, and all are attended.
    """
    masked = original.config["adapter_config"]["pooling_attention_mask"]
    mask: np.ndarray = np.asarray(groups >= 0)
    flat = features.reshape(-1, features.shape[-1])
    gathered = np.where(mask[..., None], flat[np.maximum(groups, 0)], 0.0)
    count = np.maximum(mask.sum(1), 1) if masked else np.full(len(groups), groups.shape[1])
    query = gathered.sum(1) / count[:, None]
    pooled = _pool(original, query, gathered, mask if masked else np.ones_like(mask))
    gate = silu(original.linear(pooled, f"{PROJECTOR}w1", bias=False))
    tokens = original.linear(gate * original.linear(pooled, f"{PROJECTOR}w3", bias=False), f"{PROJECTOR}w2", bias=False)
    valid = np.any(mask, axis=1)
    return {
        "connector.gathered": gathered,
        "connector.mask": mask.astype(np.int32),
        "connector.query": query,
        "connector.pooled": pooled,
        "connector.tokens": np.where(valid[:, None], tokens, 0.0),
        "connector.valid": valid.astype(np.int32),
    }


def _pool(original: Original, query: np.ndarray, gathered: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """query [G, F] attends to gathered [G, P, F] where visible [G, P] -> [G, D]."""
    config = original.config["adapter_config"]
    heads, size = config["num_attention_heads"], config["head_dim"]
    groups, slots = visible.shape
    q = original.linear(query, f"{POOL}wq", bias=True).reshape(groups, heads, size)
    k = original.linear(gathered, f"{POOL}wk", bias=True).reshape(groups, slots, heads, size)
    v = original.linear(gathered, f"{POOL}wv", bias=True).reshape(groups, slots, heads, size)
    weights = softmax(np.einsum("gHh,gpHh->gHp", q, k) * size**-0.5, visible[:, None, :])
    joined = np.einsum("gHp,gpHh->gHh", weights, v).reshape(groups, heads * size)
    return original.linear(joined, f"{POOL}wo", bias=True)
