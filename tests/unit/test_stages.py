"""The stage table: names that round-trip, shapes by hand, and the order that runtime and build share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_checkpoint import small_architecture

from molmo2_iree.stages import (
    STAGES,
    CacheLayout,
    Program,
    cache_arrays,
    dimensions,
    parse_program,
    programs,
    round_up,
    signature,
    tap_names,
    tap_programs,
)

SMALL = small_architecture()
LAYOUT = CacheLayout(slots=3, context=32, dtype="bfloat16")
BUCKETS = {"crops": [3, 9], "tokens": [64, 128], "extend": [16], "slots": [1, 4], "context": [64, 256]}


@st.composite
def any_program(draw: st.DrawFn) -> Program:
    stage = draw(st.sampled_from(sorted(STAGES)))
    sizes = [draw(st.integers(1, 10**6)) for _ in STAGES[stage].bucket]
    return Program(stage, tuple(sizes), draw(st.booleans()))


@given(any_program())
def test_names_round_trip(program: Program) -> None:
    assert parse_program(program.name) == program


@given(any_program(), any_program())
def test_two_programs_have_two_names(first: Program, second: Program) -> None:
    assert (first == second) == (first.name == second.name)
    assert set(first.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_names_by_hand() -> None:
    assert Program("vision", (3,)).name == "vision-c3"
    assert Program("decode", (2, 512)).name == "decode-b2x512"
    assert Program("extend", (16, 256)).name == "extend-t16x256"
    assert Program("prefill", (256,), taps=True).name == "prefill-s256-taps"


JUNK = [
    "",
    "-",
    "vision",
    "vision-",
    "vision-c",
    "vision-3",
    "vision-s3",
    "vision-c03",
    "vision-c+3",
    "vision-c 3",
    "vision-c-3",
    "vision-c3 ",
    "vision-c3-",
    "vision-c3-tap",
    "vision-c3-taps-taps",
    "vision-c3x4",
    "vision-c3c4",
    "Vision-c3",
    "vision-C3",
    "vision-c٣",
    "vision-c3.mlir",
    "../vision-c3",
    "vision_c3",
    "decode-b2",
    "decode-x512b2",
    "decode-b2x",
    "decode-b2-x512",
    "towel-c3",
    "vision-c3\n",
    "vision-c" + "9" * 5000,
]


@pytest.mark.parametrize("name", JUNK)
def test_junk_is_no_program(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no program name|limit"):
        parse_program(name)


@settings(max_examples=300)
@given(st.text(alphabet="viso-nc3x0taps decb", max_size=20))
def test_whatever_parses_is_its_own_name(name: str) -> None:
    try:
        program = parse_program(name)
    except ValueError:
        return
    assert program.name == name


# --- shapes --------------------------------------------------------------------------------------------------------


def test_dimensions_by_hand() -> None:
    """4 x 4 patches of 2 pixels, two selected layers of 24; with 3 crops 1 x 2 windows and the low-res view.

    4 groups of the low-res view, and a canvas of 4 x 6 patches (margins of 1 and 1) with 6: 10, rounded up to 16.
    """
    sizes = dimensions(parse_program("connector-c3"), SMALL)
    assert sizes == {"C": 3, "N": 16, "E": 12, "F": 48, "P": 4, "d": 20, "V": 512, "G": 16}
    assert dimensions(parse_program("decode-b2x32"), SMALL)["X"] == 32


@pytest.mark.parametrize(("size", "wanted"), [(1, 16), (16, 16), (17, 32), (729, 736), (0, 0)])
def test_round_up(size: int, wanted: int) -> None:
    assert round_up(size) == wanted


CACHE = [
    ("keys.0", (3, 2, 16, 32), "bfloat16"),
    ("values.0", (3, 2, 32, 16), "bfloat16"),
    ("keys.1", (3, 2, 16, 32), "bfloat16"),
    ("values.1", (3, 2, 32, 16), "bfloat16"),
]
SIGNATURES = {
    "vision-c3": ([("patches", (3, 16, 12), "float32")], [("features", (3, 16, 48), "float32")]),
    "connector-c3": (
        [("features", (3, 16, 48), "float32"), ("groups", (16, 4), "int32")],
        [("tokens", (16, 20), "float32"), ("valid", (16,), "int32")],
    ),
    "merge-s64": (
        [("ids", (64,), "int32"), ("image_tokens", (64, 20), "float32"), ("count", (), "int32")],
        [("embeddings", (64, 20), "float32")],
    ),
    "prefill-s64": (
        [
            ("embeddings", (64, 20), "float32"),
            ("types", (64,), "int32"),
            ("length", (), "int32"),
            ("slot", (), "int32"),
            *CACHE,
        ],
        [("logits", (512,), "float32"), *CACHE],
    ),
    "extend-t16x32": (
        [("ids", (16,), "int32"), ("start", (), "int32"), ("length", (), "int32"), ("slot", (), "int32"), *CACHE],
        [("logits", (512,), "float32"), *CACHE],
    ),
    "decode-b2x32": (
        [("ids", (2,), "int32"), ("positions", (2,), "int32"), ("active", (2,), "int32"), *CACHE],
        [("logits", (2, 512), "float32"), *CACHE],
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_by_hand(name: str) -> None:
    assert signature(parse_program(name), SMALL, LAYOUT) == SIGNATURES[name]


def test_taps_change_no_signature() -> None:
    assert signature(parse_program("vision-c3-taps"), SMALL, LAYOUT) == SIGNATURES["vision-c3"]


def test_the_cache_is_keys_and_values_layer_by_layer() -> None:
    assert cache_arrays(SMALL, LAYOUT) == CACHE


def test_tap_names_by_hand() -> None:
    """Three ViT blocks run, two text layers."""
    assert tap_names("vision", SMALL) == ["embedded", "positioned", "block.0", "block.1", "block.2"]
    assert tap_names("prefill", SMALL) == ["layer.0", "layer.1", "all_logits"]
    assert tap_names("decode", SMALL) == ["layer.0", "layer.1"]


def test_every_stage_has_its_taps_and_names_no_result_twice() -> None:
    for name, stage in STAGES.items():
        results = {array.name for array in stage.results}
        assert not results & set(tap_names(name, SMALL))
        assert stage.name == name


# --- what is built -------------------------------------------------------------------------------------------------


def test_programs_of_a_selection() -> None:
    assert [program.name for program in programs(BUCKETS)] == [
        "vision-c3",
        "connector-c3",
        "vision-c9",
        "connector-c9",
        "merge-s64",
        "prefill-s64",
        "merge-s128",
        "prefill-s128",
        "extend-t16x64",
        "extend-t16x256",
        "decode-b1x64",
        "decode-b1x256",
        "decode-b4x64",
        "decode-b4x256",
    ]
    assert [program.name for program in tap_programs(BUCKETS)] == [
        "vision-c9-taps",
        "connector-c9-taps",
        "merge-s128-taps",
        "prefill-s128-taps",
    ]
