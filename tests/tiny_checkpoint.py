"""Files of a checkpoint in the original format, small, with a few rightly named tensors: enough to lock and fetch."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}

CONFIG: dict[str, Any] = {
    "architectures": ["Molmo2ForConditionalGeneration"],
    "model_type": "molmo2",
    "tie_word_embeddings": False,
    "use_frame_special_tokens": False,
    "image_start_token_id": 64,
    "image_end_token_id": 65,
    "image_patch_id": 66,
    "image_high_res_id": 66,
    "image_col_id": 67,
    "low_res_image_start_token_id": 68,
    "image_low_res_id": 70,
    "frame_start_token_id": 71,
    "frame_end_token_id": 72,
    "vit_config": {
        **_HEADS,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "image_default_input_size": [56, 56],
        "image_patch_size": 14,
        "image_num_pos": 16,
    },
    "adapter_config": {
        **_HEADS,
        "hidden_size": 16,
        "intermediate_size": 32,
        "text_hidden_size": 24,
        "vit_layers": [-2, -3],
        "pooling_attention_mask": True,
        "hidden_act": "silu",
    },
    "text_config": {
        **_HEADS,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "vocab_size": 64,
        "additional_vocab_size": 16,
        "qkv_bias": False,
        "use_qk_norm": True,
        "qk_norm_type": "qwen3",
        "norm_after": False,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rope_scaling_layers": None,
        "layer_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
    },
}

PREPROCESSOR: dict[str, Any] = {
    "size": {"height": 56, "width": 56},
    "patch_size": 14,
    "max_crops": 4,
    "overlap_margins": [1, 1],
    "pooling_size": [2, 2],
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "do_convert_rgb": True,
}

SMALL_FILES: dict[str, Any] = {
    "config.json": CONFIG,
    "generation_config.json": {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0},
    "preprocessor_config.json": PREPROCESSOR,
    "processor_config.json": {
        "image_use_col_tokens": True,
        "use_single_crop_col_tokens": False,
        "use_single_crop_start_token": True,
    },
    "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}},
    "video_preprocessor_config.json": {"num_frames": 8},
}


def write_tiny(folder: Path, *, first_shard_bytes: int = 4096) -> Path:
    """Write the checkpoint as two shards and an index, with a file that no lock needs; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in copy.deepcopy(SMALL_FILES).items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages }}\n", encoding="utf-8")
    (folder / "README.md").write_text("not needed\n", encoding="utf-8")
    values = np.random.default_rng(0).integers(0, 255, first_shard_bytes, dtype=np.uint8)
    shards = [
        {"model.transformer.wte.embedding": values},
        {"model.transformer.ln_f.weight": np.ones(24, np.float32)},
    ]
    weight_map: dict[str, str] = {}
    for name, tensors in zip(SHARDS, shards, strict=True):
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
