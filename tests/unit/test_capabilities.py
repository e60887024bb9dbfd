import subprocess
import sys
from typing import Any

import pytest

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.embedded_config import DEFAULT, OLMO, Variant, json_files
from molmo2_iree.capabilities import Need, cache_bytes, describe, mask_words, need, needs, usual_buckets
from molmo2_iree.detect import VIDEO_FILE, read_architecture
from molmo2_iree.model.parameters import parameters
from molmo2_iree.stages import CacheLayout, parse_program, programs

QWEN: dict[str, Any] = {
    "vit_width": 1152,
    "vit_heads": 16,
    "vit_head_dim": 72,
    "vit_intermediate": 4304,
    "vit_blocks": 27,
    "vit_layers": (-3, -9),
    "grid": 27,
    "margins": (4, 4),
    "adapter_intermediate": 9728,
    "text_width": 2560,
    "text_layers": 36,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "text_intermediate": 9728,
    "vocabulary": 151936,
    "max_positions": 36864,
}
WIDE = {**QWEN, "text_width": 4096, "text_intermediate": 12288, "adapter_intermediate": 12288, "rope_theta": 1e6}
OLMO_WIDE = {
    **WIDE,
    "text_layers": 32,
    "kv_heads": 32,
    "text_intermediate": 11008,
    "adapter_intermediate": 11008,
    "vocabulary": 100278,
    "max_positions": 65536,
    "qk_norm": "olmo",
    "norm_after": True,
    "rope_theta": 5e5,
    "yarn_layers": (3, 7, 11, 15, 19, 23, 27, 31),
    "yarn_original_positions": 8192,
}


def architecture(variant: Variant) -> Architecture:
    return read_architecture(json_files(variant))


RELEASED = architecture(Variant(**QWEN))


@pytest.mark.parametrize(
    ("fields", "values", "tensors"),
    [(QWEN, 4_850_869_200, 706), (WIDE, 8_661_703_120, 706), (OLMO_WIDE, 7_760_786_896, 674)],
    ids=["4b", "8b", "o-7b"],
)
def test_released_parameter_and_tensor_counts(fields: dict[str, Any], values: int, tensors: int) -> None:
    made = describe(architecture(Variant(**fields)))
    assert (made.parameters, made.tensors) == (values, tensors)


def test_derived_tables_are_no_parameters_of_the_checkpoint() -> None:
    assert {p.name for p in parameters(RELEASED) if p.original is None} == {"rope.plain.cos", "rope.plain.sin"}
    assert len(parameters(RELEASED)) == 708


def test_the_release_in_words() -> None:
    made = describe(RELEASED, sources=["allenai/Molmo2-4B"])
    assert made.family == "Molmo2"
    assert made.text == (
        "Qwen3-like (norms before attention and MLP, q/k norm on each head), 36 layers of width 2,560, 32 heads on "
        "8 kv heads of 128, RoPE theta 5,000,000, up to 36,864 positions"
    )
    assert made.vision == (
        "25 of 27 declared blocks of width 1,152, read after 24 and 18; crops of 378 x 378 pixels, 729 patches; "
        "masked pooling"
    )
    assert made.images == "yes: up to 9 crops and 1,316 image tokens a picture"
    assert made.video == "its files say so; this build does not run it yet"
    assert made.mask_policy == "bidirectional, known for this repository"


@pytest.mark.parametrize(
    ("variant", "start"),
    [
        (OLMO, "Olmo3-like (norms after attention and MLP, q/k norm over the full width)"),
        (Variant(qk_norm="none"), "a combination of its own (norms before attention and MLP, no q/k norm)"),
        (Variant(norm_after=True), "a combination of its own (norms after attention and MLP, q/k norm on each head)"),
    ],
)
def test_text_variants_in_words(variant: Variant, start: str) -> None:
    assert describe(architecture(variant)).text.startswith(start)


def test_yarn_is_said_with_its_layers_and_missing_video_too() -> None:
    assert "RoPE theta 500,000, YaRN by 8 on layers 1, 3," in describe(architecture(OLMO)).text
    files = {name: content for name, content in json_files(DEFAULT).items() if name != VIDEO_FILE}
    assert describe(read_architecture(files)).video.startswith("no")


def test_mask_policy_is_known_stated_or_needed() -> None:
    assert mask_words(["", "allenai/Molmo2-O-7B"]) == "bidirectional, known for this repository"
    assert mask_words(["allenai/MolmoWeb-4B"], "causal") == "causal, as its pin states"
    assert mask_words(["allenai/MolmoWeb-4B"]).startswith("needed from the pin: it goes by the name of MolmoWeb")
    assert mask_words(["checkpoint"]).startswith("needed from the pin, no file says it")


SMALL = Variant(
    vit_width=8,
    vit_heads=2,
    vit_head_dim=4,
    vit_intermediate=40,
    vit_blocks=2,
    vit_layers=(-1, -2),
    grid=4,
    max_crops=2,
    adapter_intermediate=6,
    text_width=10,
    text_layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    text_intermediate=20,
    max_positions=64,
)
"""16 patches and so no padding; pictures have up to 3 crops and 4 + 6 groups, which round up to 16."""


def small(program: str, dtype: str = "float32", storage: str = "float32") -> Need:
    return need(parse_program(program), architecture(SMALL), CacheLayout(3, 64, dtype), storage)


def test_cache_bytes() -> None:
    # 2 arrays x 2 layers x 3 slots x 2 kv heads x 64 rows x 4 elements
    assert cache_bytes(architecture(SMALL), CacheLayout(3, 64, "float32")) == 4 * 6144
    assert cache_bytes(architecture(SMALL), CacheLayout(3, 64, "bfloat16")) == 2 * 6144
    # 36 layers, 8 kv heads of 128: 288 KiB a row
    assert cache_bytes(RELEASED, CacheLayout(1, 4096, "float32")) == 4096 * 288 * 1024


def test_needs_of_every_stage_by_hand() -> None:
    vision, connector, merge = small("vision-c3"), small("connector-c3"), small("merge-s32")
    # 48 rows of 2 x 8 + max(3 x 8, 40), and 4 x 3 crops x 2 heads x 16 x 16 scores
    assert vision.temporaries == 4 * (48 * 56 + 4 * 3 * 2 * 256)
    # patches 48 x 588 in, joined features 48 x 16 out
    assert vision.arguments == 4 * (48 * 588 + 48 * 16)
    # 16 groups of max(4 x (16 + 16) + 16 + 16, 3 x 6 + 8)
    assert connector.temporaries == 4 * 16 * 160
    # features, groups of 4, tokens of 10, validity
    assert connector.arguments == 4 * (48 * 16 + 16 * 4 + 16 * 10 + 16)
    assert merge.weights == 4 * (512 + 128) * 10
    assert (merge.arguments, merge.temporaries) == (4 * (32 + 32 * 10 + 1 + 32 * 10), 4 * 32)
    assert vision.cache == connector.cache == merge.cache == 0


def test_needs_of_decoder_stages_by_hand() -> None:
    prefill, extend, decode = small("prefill-s32"), small("extend-t16x64"), small("decode-b3x64")
    row = 2 * 10 + 3 * 20
    assert prefill.temporaries == 4 * (32 * row + 4 * 4 * 32 * 32)
    assert extend.temporaries == 4 * (16 * row + 4 * 4 * 16 * 64)
    assert decode.temporaries == 4 * (3 * row + 4 * 4 * 3 * 64)
    assert small("extend-t16x64", "bfloat16").temporaries == extend.temporaries + 4 * 2 * 4 * 64
    assert small("decode-b3x64", "bfloat16").temporaries == decode.temporaries
    assert (decode.arguments, decode.cache) == (4 * (3 * 3 + 3 * 512), 4 * 6144)
    assert decode.total == decode.weights + decode.arguments + decode.cache + decode.temporaries


def test_storage_dtype_halves_matrices_and_leaves_vectors() -> None:
    wide, narrow = small("merge-s32"), small("merge-s32", storage="bfloat16")
    assert narrow.weights * 2 == wide.weights
    wide, narrow = small("prefill-s32"), small("prefill-s32", storage="bfloat16")
    # Two layers of two norms of 10 and q/k norms of 4, one last norm of 10, two tables of 64 x 2
    vectors = 2 * (2 * 10 + 2 * 4) + 10 + 2 * 64 * 2
    assert wide.weights - narrow.weights == (wide.weights - 4 * vectors) // 2


def test_stages_of_the_release_read_all_its_weights() -> None:
    buckets = usual_buckets(RELEASED)
    assert buckets == {
        "crops": (5, 9),
        "tokens": (256, 2048),
        "extend": (64,),
        "slots": (1, 4),
        "context": (2048, 4096),
    }
    every = {n.program: n for n in needs(RELEASED, CacheLayout(4, 4096, "float32"), buckets, "float32")}
    assert list(every) == [program.name for program in programs(buckets)]
    tables = 4 * 2 * 36864 * 64
    seen = every["vision-c9"].weights + every["connector-c9"].weights + every["decode-b4x4096"].weights
    assert seen == 4 * 4_850_869_200 + tables
    # Four arrays of scores, 9 crops x 16 heads x 736 x 736, are most of it.
    assert every["vision-c9"].temporaries == 4 * (9 * 736 * (2 * 1152 + 4304) + 4 * 9 * 16 * 736 * 736)


def test_describing_loads_neither_jax_nor_torch() -> None:
    script = "import sys, molmo2_iree.capabilities; print(sorted({'jax', 'torch', 'iree'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
