import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from molmo2_iree.build.embedded import DEFAULT, OLMO, Variant, checkpoint_files, embedded_lock, write_checkpoint
from molmo2_iree.build.embedded_tensors import shapes, tensor
from molmo2_iree.detect import read_architecture
from molmo2_iree.lock import read_lock

FIRST = [-11824.0, 43080.0, 53410.0, 22308.0]
DIGEST = "bcace1221bc8ab02"

LOCK = Path(__file__).parents[3] / "config" / "locks" / "embedded.yaml"


def test_the_stored_lock_is_the_generators() -> None:
    assert read_lock(LOCK) == embedded_lock()


def test_written_files_are_the_locked_ones(tmp_path: Path) -> None:
    paths = write_checkpoint(tmp_path)
    locked = read_lock(LOCK).files
    assert sorted(path.name for path in paths) == sorted(path.name for path in tmp_path.iterdir()) == sorted(locked)
    for path in paths:
        data = path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (locked[path.name].size, locked[path.name].sha256)


def test_twice_the_same_bytes_and_another_seed_other_weights_only() -> None:
    first, again, other = checkpoint_files(), checkpoint_files(), checkpoint_files(seed=1)
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


def test_a_tensor_depends_on_seed_and_name_only() -> None:
    values = tensor("a.weight", (6, 4), 0)
    np.testing.assert_array_equal(tensor("a.weight", (12, 4), 0)[:6], values)
    assert (tensor("b.weight", (6, 4), 0) != values).mean() > 0.9
    assert (tensor("a.weight", (6, 4), 1) != values).mean() > 0.9


def test_the_generator_is_pinned() -> None:
    """First values of a tensor, as exact fractions: a change of numpy's bit generator would show here."""
    values = tensor("lm_head.weight", (512, 80), 0)
    assert (values[0, :4] * 2.0**18).tolist() == FIRST
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()[:16] == DIGEST


@pytest.mark.parametrize("variant", [DEFAULT, OLMO, replace(DEFAULT, shards=1), replace(DEFAULT, shards=3)])
def test_files_hold_the_stated_shapes(variant: Variant, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant=variant)
    weights = sorted(tmp_path.glob("*.safetensors"))
    assert len(weights) == variant.shards
    loaded = {name: array for path in weights for name, array in load_file(path).items()}
    assert {name: array.shape for name, array in loaded.items()} == shapes(variant)
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in loaded.values())
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (variant.shards > 1)
    if index.exists():
        stated = json.loads(index.read_text())
        assert stated["metadata"]["total_size"] == sum(array.nbytes for array in loaded.values())
        assert stated["metadata"]["total_parameters"] == sum(array.size for array in loaded.values())
        assert all(name in load_file(tmp_path / shard) for name, shard in stated["weight_map"].items())


def test_neighbouring_tensors_are_in_different_shards() -> None:
    shards = list(json.loads(checkpoint_files()["model.safetensors.index.json"])["weight_map"].values())
    assert all(one != next_one for one, next_one in pairwise(shards))


def test_shapes_of_the_contracts_tables() -> None:
    table = shapes(DEFAULT)
    text, vit, pool = (
        "model.transformer.",
        "model.vision_backbone.image_vit.",
        "model.vision_backbone.image_pooling_2d.",
    )
    projector = "model.vision_backbone.image_projector."
    for name, shape in {
        f"{text}wte.embedding": (512, 80),
        f"{text}wte.new_embedding": (128, 80),
        f"{text}blocks.3.attn_norm.weight": (80,),
        f"{text}blocks.3.ff_norm.weight": (80,),
        f"{text}blocks.3.self_attn.att_proj.weight": (128, 80),
        f"{text}blocks.3.self_attn.q_norm.weight": (16,),
        f"{text}blocks.3.self_attn.k_norm.weight": (16,),
        f"{text}blocks.3.self_attn.attn_out.weight": (80, 64),
        f"{text}blocks.3.mlp.ff_proj.weight": (320, 80),
        f"{text}blocks.3.mlp.ff_out.weight": (80, 160),
        f"{text}ln_f.weight": (80,),
        "lm_head.weight": (512, 80),
        f"{vit}patch_embedding.weight": (64, 588),
        f"{vit}patch_embedding.bias": (64,),
        f"{vit}positional_embedding": (49, 64),
        f"{vit}transformer.resblocks.5.attention_norm.bias": (64,),
        f"{vit}transformer.resblocks.5.attention.wo.weight": (64, 64),
        f"{vit}transformer.resblocks.5.feed_forward.w1.weight": (144, 64),
        f"{vit}transformer.resblocks.5.feed_forward.w2.bias": (64,),
        f"{pool}wk.weight": (64, 192),
        f"{pool}wo.weight": (64, 64),
        f"{projector}w1.weight": (96, 64),
        f"{projector}w2.weight": (80, 96),
        f"{projector}w3.weight": (96, 64),
    }.items():
        assert table[name] == shape, name
    # 4 tables and head, 8 a text layer, 3 around and 16 a stored ViT block, 8 in the pooling, 3 in the projector
    assert len(table) == 4 + 4 * 8 + 3 + 6 * 16 + 8 + 3
    assert not any("resblocks.6" in name for name in table)
    olmo = shapes(OLMO)
    assert olmo[f"{text}blocks.0.self_attn.att_proj.weight"] == (192, 80)
    assert olmo[f"{text}blocks.0.self_attn.k_norm.weight"] == (64,)


def test_the_released_dimensions_give_the_released_counts() -> None:
    """706 tensors and 4,850,869,200 parameters (contract 1.1)."""
    released = replace(
        DEFAULT,
        **{"vit_width": 1152, "vit_heads": 16, "vit_head_dim": 72, "vit_intermediate": 4304, "vit_blocks": 27},
        **{"vit_layers": (-3, -9), "grid": 27, "adapter_intermediate": 9728, "text_width": 2560, "text_layers": 36},
        **{"heads": 32, "kv_heads": 8, "head_dim": 128, "text_intermediate": 9728, "vocabulary": 151936},
    )
    table = shapes(released)
    assert len(table) == 706
    assert sum(int(np.prod(shape)) for shape in table.values()) == 4_850_869_200


def test_the_architecture_is_read_as_any_other() -> None:
    architecture = read_lock(LOCK).architecture
    assert architecture.vision.layers == (4, 2, 5)
    assert (architecture.vision.declared_blocks, architecture.vision.blocks) == (8, 6)
    assert architecture.vision.grid == (7, 7)
    assert architecture.tokens.stop == (458,)
    assert architecture.video
    olmo = checkpoint_files(variant=OLMO)
    text = read_architecture({n: json.loads(d) for n, d in olmo.items() if n.endswith("config.json")}).text
    assert text.yarn is not None
    assert (text.norm_after, text.qk_norm, text.yarn.layers) == (True, "full", (1, 3))


def test_no_qk_norm_stores_none() -> None:
    assert not [
        name for name in shapes(replace(DEFAULT, qk_norm="none")) if name.endswith(("q_norm.weight", "k_norm.weight"))
    ]
