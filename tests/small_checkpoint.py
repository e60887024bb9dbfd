"""A checkpoint of two text layers and few ViT blocks, its stored tensors as arrays, and shards written from arrays."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.embedded import DEFAULT, Variant
from molmo2_iree.build.embedded_config import json_files
from molmo2_iree.build.embedded_tensors import tensors
from molmo2_iree.detect import read_architecture

INDEX = "model.safetensors.index.json"
SMALL = replace(
    DEFAULT,
    vit_width=24,
    vit_heads=2,
    vit_head_dim=8,
    vit_intermediate=20,
    vit_blocks=5,
    vit_layers=(-3, -4),
    patch_size=2,
    grid=4,
    adapter_intermediate=28,
    text_width=20,
    text_layers=2,
    text_intermediate=36,
    max_positions=64,
    shards=1,
)
"""Blocks 2 and 1 of 5 are selected, so 0, 1 and 2 are stored; no width is another's, nor heads times head dim."""


def small_architecture(variant: Variant = SMALL) -> Architecture:
    return read_architecture(json_files(variant))


def small_tensors(variant: Variant = SMALL) -> dict[str, np.ndarray]:
    return tensors(variant, 0)


def write_shards(folder: Path, *shards: Mapping[str, np.ndarray]) -> Path:
    """One ``model.safetensors``, or several shards with an index of what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(shards) == 1:
        save_file(dict(shards[0]), folder / "model.safetensors")
        return folder
    owner = {}
    for number, held in enumerate(shards, 1):
        name = f"model-{number}.safetensors"
        save_file(dict(held), folder / name)
        owner |= dict.fromkeys(held, name)
    write_index(folder, owner)
    return folder


def write_index(folder: Path, owner: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": owner}), encoding="utf-8")
