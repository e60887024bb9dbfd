"""Write the trained weights as a Molmo2 release stores them: original names, two shards with an index, float16.

The bytes depend on the weights alone.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from molmo2_iree.build.embedded_config import Variant
from molmo2_iree.build.embedded_tensors import TEXT, VISION, shapes
from training.shape import VARIANT, small_files

STORED = np.dtype("<f2")
"""float16: the widest tensor values are far inside its range, and answers are judged after this rounding."""

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.o_proj": "self_attn.attn_out",
    "self_attn.q_norm": "self_attn.q_norm",
    "self_attn.k_norm": "self_attn.k_norm",
    "mlp.down_proj": "mlp.ff_out",
}
_BLOCK = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.fc1": "feed_forward.w1",
    "mlp.fc2": "feed_forward.w2",
    "layer_norm1": "attention_norm",
    "layer_norm2": "ffn_norm",
}
_POOL = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"}
_PROJECTOR = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def original_tensors(variant: Variant, state: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The state of a transformers model by the release's names, float32, in name order (contract 2.3)."""
    here = {name: value.detach().float().numpy() for name, value in state.items()}
    table = here.pop("model.language_model.embed_tokens.weight")
    result = {
        f"{TEXT}wte.embedding": table[: variant.vocabulary],
        f"{TEXT}wte.new_embedding": table[variant.vocabulary :],
        f"{TEXT}ln_f.weight": here["model.language_model.norm.weight"],
        "lm_head.weight": here["lm_head.weight"],
    }
    for layer in range(variant.text_layers):
        mine, theirs = f"model.language_model.layers.{layer}.", f"{TEXT}blocks.{layer}."
        result |= {f"{theirs}{b}.weight": here[f"{mine}{a}.weight"] for a, b in _LAYER.items()}
        joined = [here[f"{mine}self_attn.{part}_proj.weight"] for part in "qkv"]
        result[f"{theirs}self_attn.att_proj.weight"] = np.concatenate(joined)
        # The linear half first, the gate second.
        halves = [here[f"{mine}mlp.{part}_proj.weight"] for part in ("up", "gate")]
        result[f"{theirs}mlp.ff_proj.weight"] = np.concatenate(halves)
    tower, vit = "model.vision_tower.", f"{VISION}image_vit."
    result[f"{vit}positional_embedding"] = here[f"{tower}positional_embedding"]
    pairs = {f"{tower}patch_embedding": f"{vit}patch_embedding"}
    for block in range(variant.blocks):
        pairs |= {f"{tower}layers.{block}.{a}": f"{vit}transformer.resblocks.{block}.{b}" for a, b in _BLOCK.items()}
    adapter = "model.multi_modal_projector."
    pairs |= {f"{adapter}image_pooling_2d.{a}": f"{VISION}image_pooling_2d.{b}" for a, b in _POOL.items()}
    for mine, theirs in pairs.items():
        result |= {f"{theirs}.{end}": here[f"{mine}.{end}"] for end in ("weight", "bias")}
    for a, b in _PROJECTOR.items():
        result[f"{VISION}image_projector.{b}.weight"] = here[f"{adapter}image_projector.{a}.weight"]
    result = dict(sorted(result.items()))
    wanted, got = shapes(variant), {name: value.shape for name, value in result.items()}
    if wanted != got:
        raise ValueError(f"tensors differ from the format: {sorted(set(wanted.items()) ^ set(got.items()))}")
    return result


def weight_files(arrays: Mapping[str, np.ndarray], shards: int = 2) -> dict[str, bytes]:
    """The shards, each a run of tensors in name order and about equally large, and their index."""
    total = sum(array.size for array in arrays.values()) * STORED.itemsize
    names = [f"model-{k + 1:05}-of-{shards:05}.safetensors" for k in range(shards)]
    owner, done = {}, 0
    for name, array in arrays.items():
        owner[name] = names[min(done * shards // total, shards - 1)]
        done += array.size * STORED.itemsize
    files = {
        shard: _safetensors({name: array for name, array in arrays.items() if owner[name] == shard}) for shard in names
    }
    index = {"metadata": {"total_parameters": total // STORED.itemsize, "total_size": total}, "weight_map": owner}
    return files | {"model.safetensors.index.json": (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()}


def _safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file: header length, JSON header padded to 8 bytes, little-endian data in the header's order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks, end = [], 0
    for name, array in arrays.items():
        chunk = array.astype(STORED).tobytes()
        header[name] = {"dtype": "F16", "shape": list(array.shape), "data_offsets": [end, end + len(chunk)]}
        chunks.append(chunk)
        end += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(chunks)


def export(state: Mapping[str, torch.Tensor], folder: Path, variant: Variant = VARIANT) -> str:
    """Write every file of the checkpoint; returns the sha256 over names and bytes."""
    files = small_files(variant, "float16") | weight_files(original_tensors(variant, state))
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        temporary = folder / f".{name}.tmp"
        temporary.write_bytes(data)
        temporary.replace(folder / name)
        digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()
