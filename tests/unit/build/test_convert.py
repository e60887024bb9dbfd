"""Conversion: the name table of contract section 2, what each archive holds, and the stored values to the bit."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
import pytest
from small_checkpoint import SMALL, small_architecture, small_tensors, write_shards

from molmo2_iree.build.convert import convert
from molmo2_iree.build.embedded import OLMO, Variant
from molmo2_iree.identity import file_sha256
from molmo2_iree.model.parameters import parameters, stage_parameters
from molmo2_iree.stages import STAGES

ONE_OF_EACH = replace(SMALL, vit_blocks=2, vit_layers=(-2,), text_layers=1)
"""One text layer; block 0 of two declared ones is selected and stored."""

TEXT = {
    "model.transformer.wte.embedding": (512, 20),
    "model.transformer.wte.new_embedding": (128, 20),
    "model.transformer.blocks.0.attn_norm.weight": (20,),
    "model.transformer.blocks.0.ff_norm.weight": (20,),
    "model.transformer.blocks.0.self_attn.att_proj.weight": (128, 20),
    "model.transformer.blocks.0.self_attn.q_norm.weight": (16,),
    "model.transformer.blocks.0.self_attn.k_norm.weight": (16,),
    "model.transformer.blocks.0.self_attn.attn_out.weight": (20, 64),
    "model.transformer.blocks.0.mlp.ff_proj.weight": (72, 20),
    "model.transformer.blocks.0.mlp.ff_out.weight": (20, 36),
    "model.transformer.ln_f.weight": (20,),
    "lm_head.weight": (512, 20),
}
VIT = "model.vision_backbone.image_vit."
POOL = "model.vision_backbone.image_pooling_2d."
VISION = {
    f"{VIT}patch_embedding.weight": (24, 12),
    f"{VIT}patch_embedding.bias": (24,),
    f"{VIT}positional_embedding": (16, 24),
    f"{VIT}transformer.resblocks.0.attention_norm.weight": (24,),
    f"{VIT}transformer.resblocks.0.attention_norm.bias": (24,),
    f"{VIT}transformer.resblocks.0.ffn_norm.weight": (24,),
    f"{VIT}transformer.resblocks.0.ffn_norm.bias": (24,),
    f"{VIT}transformer.resblocks.0.attention.wq.weight": (16, 24),
    f"{VIT}transformer.resblocks.0.attention.wq.bias": (16,),
    f"{VIT}transformer.resblocks.0.attention.wk.weight": (16, 24),
    f"{VIT}transformer.resblocks.0.attention.wk.bias": (16,),
    f"{VIT}transformer.resblocks.0.attention.wv.weight": (16, 24),
    f"{VIT}transformer.resblocks.0.attention.wv.bias": (16,),
    f"{VIT}transformer.resblocks.0.attention.wo.weight": (24, 16),
    f"{VIT}transformer.resblocks.0.attention.wo.bias": (24,),
    f"{VIT}transformer.resblocks.0.feed_forward.w1.weight": (20, 24),
    f"{VIT}transformer.resblocks.0.feed_forward.w1.bias": (20,),
    f"{VIT}transformer.resblocks.0.feed_forward.w2.weight": (24, 20),
    f"{VIT}transformer.resblocks.0.feed_forward.w2.bias": (24,),
    f"{POOL}wq.weight": (16, 24),
    f"{POOL}wq.bias": (16,),
    f"{POOL}wk.weight": (16, 24),
    f"{POOL}wk.bias": (16,),
    f"{POOL}wv.weight": (16, 24),
    f"{POOL}wv.bias": (16,),
    f"{POOL}wo.weight": (24, 16),
    f"{POOL}wo.bias": (24,),
    "model.vision_backbone.image_projector.w1.weight": (28, 24),
    "model.vision_backbone.image_projector.w2.weight": (20, 28),
    "model.vision_backbone.image_projector.w3.weight": (28, 24),
}
ORIGINAL = {
    "embedding.base": "model.transformer.wte.embedding",
    "layers.0.attention.qkv": "model.transformer.blocks.0.self_attn.att_proj.weight",
    "layers.0.mlp.up_gate": "model.transformer.blocks.0.mlp.ff_proj.weight",
    "layers.0.mlp_norm": "model.transformer.blocks.0.ff_norm.weight",
    "projector.gate.weight": "model.vision_backbone.image_projector.w1.weight",
    "projector.up.weight": "model.vision_backbone.image_projector.w3.weight",
    "projector.down.weight": "model.vision_backbone.image_projector.w2.weight",
    "vit.blocks.0.mlp.up.weight": f"{VIT}transformer.resblocks.0.feed_forward.w1.weight",
    "vit.blocks.0.mlp_norm.bias": f"{VIT}transformer.resblocks.0.ffn_norm.bias",
    "head.weight": "lm_head.weight",
}
"""Names that a slip could swap: the text gate is the second half, the projector's gate is w1."""


def quiet(_: int) -> None:
    """No progress."""


def read_archive(path: Path) -> dict[str, bytes]:
    index = rt.ParameterIndex()
    index.load(str(path))
    return {name: bytes(entry.file_view) for name, entry in index.items()}


def converted(folder: Path, arrays: dict[str, np.ndarray], variant: Variant = SMALL, storage: str = "float32") -> Path:
    write_shards(folder / "checkpoint", arrays)
    convert(folder / "checkpoint", small_architecture(variant), storage, folder / storage, quiet)
    return folder / storage


# --- the name table ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("archive", "literal"), [("vision", VISION), ("text", TEXT)])
def test_the_name_table_is_the_contracts(archive: str, literal: dict[str, tuple[int, ...]]) -> None:
    table = [p for p in parameters(small_architecture(ONE_OF_EACH)) if p.archive == archive and p.original is not None]
    assert [p.original for p in table if p.original not in literal] == []
    assert {p.original: p.shape for p in table} == literal
    assert len(table) == len(literal)


def test_names_are_not_swapped() -> None:
    table = {p.name: p.original for p in parameters(small_architecture(ONE_OF_EACH))}
    assert {name: table[name] for name in ORIGINAL} == ORIGINAL


def test_norm_widths_follow_the_variant() -> None:
    def norms(variant: Variant) -> dict[str, tuple[int, ...]]:
        table = parameters(small_architecture(variant))
        return {p.name: p.shape for p in table if p.name.endswith(("q_norm", "k_norm"))}

    one = replace(ONE_OF_EACH, heads=6)
    assert norms(one) == {"layers.0.attention.q_norm": (16,), "layers.0.attention.k_norm": (16,)}
    full = norms(replace(one, qk_norm="olmo"))
    assert full == {"layers.0.attention.q_norm": (96,), "layers.0.attention.k_norm": (32,)}
    assert norms(replace(one, qk_norm="none")) == {}


@pytest.mark.parametrize("variant", [SMALL, OLMO], ids=["small", "olmo"])
def test_every_parameter_is_read_by_a_stage(variant: Variant) -> None:
    architecture = small_architecture(variant)
    names = [p.name for p in parameters(architecture)]
    assert len(set(names)) == len(names)
    assert {p.name for stage in STAGES for p in stage_parameters(architecture, stage)} == set(names)
    for stage in STAGES:
        read = [p.name for p in stage_parameters(architecture, stage)]
        assert read == sorted(read)


# --- archives ------------------------------------------------------------------------------------------------------


def test_archives_hold_their_own_half_and_no_deeper_block(tmp_path: Path) -> None:
    folder = converted(tmp_path, small_tensors())
    vision, text = (read_archive(folder / f"{name}.irpa") for name in ("vision", "text"))
    assert {name.split(".")[0] for name in vision} == {"vit", "pooling", "projector"}
    assert {name.split(".")[0] for name in text} == {"embedding", "rope", "layers", "norm", "head"}
    assert {name.split(".")[2] for name in vision if name.startswith("vit.blocks.")} == {"0", "1", "2"}


def test_declared_blocks_that_no_stage_runs_are_left_out(tmp_path: Path) -> None:
    """Five blocks are declared and 0 to 2 run: a checkpoint that stores 3 and 4 too gives the same archives."""
    arrays = small_tensors()
    block = f"{VIT}transformer.resblocks."
    more = {
        name.replace(f"{block}2.", f"{block}{k}."): a for k in (3, 4) for name, a in arrays.items() if block in name
    }
    lean, full = converted(tmp_path / "lean", arrays), converted(tmp_path / "full", {**more, **arrays})
    assert [p.name for p in sorted(full.iterdir())] == ["text.irpa", "vision.irpa", "weights.json"]
    for path in lean.iterdir():
        assert (full / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_the_index_describes_what_was_written(storage: str, tmp_path: Path) -> None:
    folder = converted(tmp_path, small_tensors(), storage=storage)
    index = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    assert (index["storage"], sorted(index["archives"])) == (storage, ["text", "vision"])
    for name, entry in index["archives"].items():
        path = folder / f"{name}.irpa"
        assert (entry["file"], entry["size"]) == (path.name, path.stat().st_size)
        assert entry["sha256"] == file_sha256(path)
        found = read_archive(path)
        assert {n: hashlib.sha256(content).hexdigest() for n, content in found.items()} == {
            n: tensor["sha256"] for n, tensor in entry["tensors"].items()
        }


def test_progress_adds_up_to_the_tensors_bytes(tmp_path: Path) -> None:
    write_shards(tmp_path / "c", small_tensors())
    sizes: list[int] = []
    convert(tmp_path / "c", small_architecture(), "bfloat16", tmp_path / "out", sizes.append)
    contents = [
        *read_archive(tmp_path / "out/text.irpa").values(),
        *read_archive(tmp_path / "out/vision.irpa").values(),
    ]
    assert sum(sizes) == sum(map(len, contents))


# --- values --------------------------------------------------------------------------------------------------------


def expected_bytes(array: np.ndarray, kind: str, storage: str) -> bytes:
    if storage == "bfloat16" and kind == "matrix":
        return nearest_even(array).tobytes()
    return array.astype("<f4").tobytes()


def nearest_even(array: np.ndarray) -> np.ndarray:
    """bfloat16 bits of float32 values by integer arithmetic: half of the last place and its own last bit are added."""
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def test_nearest_even_by_hand() -> None:
    """The places of bfloat16 near 1 are 2 ** -7 apart; ties go to the even one."""
    place = 2.0**-7
    given = np.array([1 + place / 2, 1 + 1.5 * place, 1 + 0.51 * place, -1 - place / 2], np.float32)
    rounded = nearest_even(given).view(ml_dtypes.bfloat16).astype(np.float32)
    assert rounded.tolist() == [1, 1 + 2 * place, 1 + place, -1]


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", [1 << 22, 77])
def test_every_stored_tensor_is_its_original(
    storage: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molmo2_iree.build.tensors.PART", part)
    arrays = small_tensors()
    ties = np.array([1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, 1e-40, 3.3e38], np.float32)
    arrays["model.transformer.wte.embedding"].reshape(-1)[: len(ties)] = ties
    folder = converted(tmp_path, arrays, storage=storage)
    stored = read_archive(folder / "vision.irpa") | read_archive(folder / "text.irpa")
    for p in parameters(small_architecture()):
        if p.original is not None:
            assert stored[p.name] == expected_bytes(arrays[p.original], p.kind, storage), p.name


def test_only_matrices_are_narrowed() -> None:
    vectors = {p.name for p in parameters(small_architecture()) if p.dtype("bfloat16") == "float32"}
    assert {p.name for p in parameters(small_architecture()) if len(p.shape) == 1} <= vectors
    assert vectors >= {"vit.position", "rope.plain.cos", "rope.plain.sin"}
    assert not vectors & {"embedding.base", "embedding.extra", "head.weight", "vit.patch_embedding.weight"}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_narrow_checkpoints_are_read_as_the_numbers_they_hold(dtype: Any, storage: str, tmp_path: Path) -> None:
    arrays = {name: array.astype(dtype) for name, array in small_tensors().items()}
    folder = converted(tmp_path, arrays, storage=storage)
    stored = read_archive(folder / "vision.irpa") | read_archive(folder / "text.irpa")
    for p in parameters(small_architecture()):
        if p.original is not None:
            assert stored[p.name] == expected_bytes(arrays[p.original].astype(np.float32), p.kind, storage), p.name


def test_converting_twice_and_from_shards_gives_the_same_bytes(tmp_path: Path) -> None:
    arrays = small_tensors()
    names = list(arrays)
    first = converted(tmp_path / "a", arrays)
    write_shards(tmp_path / "b", *({name: arrays[name] for name in names[k::3]} for k in range(3)))
    convert(tmp_path / "b", small_architecture(), "float32", tmp_path / "c", quiet)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["text.irpa", "vision.irpa", "weights.json"]
    for path in first.iterdir():
        assert (tmp_path / "c" / path.name).read_bytes() == path.read_bytes()
