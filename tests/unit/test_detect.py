import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoint import SMALL_FILES, write_tiny

from molmo2_iree.architecture import Architecture
from molmo2_iree.build.embedded import OLMO
from molmo2_iree.build.embedded_config import DEFAULT, json_files
from molmo2_iree.build.lock import lock_directory, lock_hub
from molmo2_iree.capabilities import describe, usual_buckets
from molmo2_iree.detect import JSON_FILES, read_architecture
from molmo2_iree.errors import CheckpointError, MolmoError, UnsupportedError
from molmo2_iree.family import is_molmoweb

Files = dict[str, Any]
Steps = tuple[str | int, ...]

REMOVE = type("Remove", (), {"__repr__": lambda self: "removed"})()


def changed(path: str, value: object, files: Files | None = None) -> Files:
    """The tiny checkpoint's files with one field, "file/section/field", replaced or removed."""
    files = copy.deepcopy(SMALL_FILES if files is None else files)
    *parents, last = path.split("/")
    place: Any = files
    for step in parents:
        place = place[step]
    if value is REMOVE:
        del place[last]
    else:
        place[last] = value
    return files


def refusal(files: Files) -> MolmoError:
    with pytest.raises(MolmoError) as caught:
        read_architecture(files)
    return caught.value


def test_a_release_is_read_as_its_files_say() -> None:
    made = read_architecture(SMALL_FILES)
    assert (made.vision.layers, made.vision.declared_blocks, made.vision.blocks) == ((2, 1), 4, 3)
    assert (made.text.qk_norm, made.text.norm_after, made.text.yarn) == ("head", False, None)
    assert (made.processor.max_crops, made.processor.group_size, made.video) == (4, 4, True)
    assert made.tokens.stop == (1,)


def test_yarn_layers_are_read_and_absent_ones_mean_every_layer() -> None:
    files = json_files(OLMO)
    listed, every = read_architecture(files), changed("config.json/text_config/rope_scaling_layers", None, files)
    assert listed.text.yarn is not None
    assert listed.text.yarn.layers == (1, 3)
    yarn = read_architecture(every).text.yarn
    assert yarn is not None
    assert yarn.layers == (0, 1, 2, 3)
    assert (listed.text.qk_norm, listed.text.norm_after) == ("full", True)


def test_q_and_k_norm_may_be_off_whatever_its_type_says() -> None:
    files = changed("config.json/text_config/use_qk_norm", False)
    assert read_architecture(changed("config.json/text_config/qk_norm_type", None, files)).text.qk_norm == "none"


@pytest.mark.parametrize(
    ("kind", "architecture", "name"),
    [
        ("molmo", "MolmoForCausalLM", "Molmo v1"),
        ("molmo_point", "MolmoPointForConditionalGeneration", "Molmo Point"),
        ("molmo2_point", "Molmo2PointForConditionalGeneration", "Molmo Point"),
        ("molmoact", "MolmoActForActionReasoning", "MolmoAct"),
        ("molmoact2", "MolmoAct2ForConditionalGeneration", "MolmoAct"),
        ("MolmoAct2", "MolmoAct2ForConditionalGeneration", "MolmoAct"),
        ("molmo_motion", "MolmoMotionForConditionalGeneration", "Molmo Motion"),
        ("molmoweb", "MolmoWebForConditionalGeneration", "MolmoWeb"),
    ],
)
def test_siblings_are_refused_by_name_with_the_nearest_model(kind: str, architecture: str, name: str) -> None:
    by_kind = changed("config.json/model_type", kind)
    by_name = changed("config.json/architectures", [architecture])
    for files, field in ((by_kind, "model_type"), (by_name, "architectures")):
        error = refusal(files)
        assert isinstance(error, UnsupportedError)
        assert name in str(error.got)
        assert error.where == f"config.json {field}"
        assert "nearest supported model is allenai/Molmo2-4B" in error.fix


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [("qwen2_vl", "Molmo2-4B"), ("llava", "Molmo2-4B"), ("olmo3", "Molmo2-O-7B"), (None, "Molmo2-4B")],
)
def test_other_model_types_are_refused_with_the_nearest_model(kind: str | None, nearest: str) -> None:
    error = refusal(changed("config.json/model_type", kind))
    assert isinstance(error, UnsupportedError)
    assert f"nearest supported model is allenai/{nearest}" in error.fix
    assert (kind or "none") in str(error.got)


def test_a_sibling_is_named_even_if_its_files_have_no_field_of_a_release() -> None:
    files = {name: {} for name in JSON_FILES} | {"config.json": {"model_type": "molmo"}}
    assert "Molmo v1" in str(refusal(files))


UNSUPPORTED = [
    ("config.json/architectures", ["SomeModel"]),
    ("config.json/architectures", REMOVE),
    ("config.json/tie_word_embeddings", True),
    ("config.json/use_frame_special_tokens", True),
    ("config.json/image_high_res_id", 65),
    ("config.json/quantization_config", {"bits": 4}),
    ("config.json/quantization", {"group_size": 64}),
    ("config.json/image_col_id", 80),
    ("config.json/vit_config/hidden_act", "quick_gelu"),
    ("config.json/vit_config/image_num_pos", 17),
    ("config.json/vit_config/num_key_value_heads", 1),
    ("config.json/vit_config/image_default_input_size", [56, 57]),
    ("config.json/adapter_config/vit_layers", []),
    ("config.json/adapter_config/vit_layers", [-5]),
    ("config.json/adapter_config/vit_layers", [4]),
    ("config.json/adapter_config/hidden_act", "gelu"),
    ("config.json/adapter_config/text_hidden_size", 32),
    ("config.json/text_config/qkv_bias", True),
    ("config.json/text_config/hidden_act", "gelu"),
    ("config.json/text_config/qk_norm_type", "gemma"),
    ("config.json/text_config/num_attention_heads", 3),
    ("config.json/text_config/head_dim", 7),
    ("config.json/text_config/rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ("generation_config.json/eos_token_id", 64),
    ("preprocessor_config.json/resample", 3),
    ("preprocessor_config.json/do_convert_rgb", False),
    ("preprocessor_config.json/patch_size", 28),
    ("preprocessor_config.json/size", {"height": 28, "width": 56}),
    ("preprocessor_config.json/overlap_margins", [2, 2]),
]


@pytest.mark.parametrize(("path", "value"), UNSUPPORTED, ids=lambda value: str(value)[-40:])
def test_unsupported_values_are_refused_by_field(path: str, value: object) -> None:
    error = refusal(changed(path, value))
    assert isinstance(error, UnsupportedError)
    field = {"num_attention_heads": "num_key_value_heads"}.get(path.rpartition("/")[2], path.rpartition("/")[2])
    assert field in error.where
    assert "allenai/Molmo2-4B" in error.fix


MISTYPED = [
    ("config.json", [1, 2]),
    ("config.json", None),
    ("config.json/model_type", 4),
    ("config.json/architectures", "Molmo2ForConditionalGeneration"),
    ("config.json/architectures", [None]),
    ("config.json/vit_config", None),
    ("config.json/text_config", REMOVE),
    ("config.json/adapter_config", []),
    ("config.json/text_config/hidden_size", "24"),
    ("config.json/text_config/hidden_size", 24.0),
    ("config.json/text_config/hidden_size", True),
    ("config.json/text_config/hidden_size", -24),
    ("config.json/text_config/num_hidden_layers", 10**18),
    ("config.json/text_config/rope_theta", float("nan")),
    ("config.json/text_config/rope_theta", 1.0),
    ("config.json/text_config/rope_scaling", {"rope_type": "yarn", "factor": "8"}),
    ("config.json/text_config/rope_scaling_layers", "all"),
    ("config.json/vit_config/image_patch_size", 0),
    ("config.json/vit_config/image_default_input_size", 56),
    ("config.json/vit_config/layer_norm_eps", float("inf")),
    ("config.json/adapter_config/vit_layers", -2),
    ("config.json/adapter_config/vit_layers", ["-2"]),
    ("generation_config.json", "greedy"),
    ("generation_config.json/eos_token_id", None),
    ("generation_config.json/eos_token_id", []),
    ("preprocessor_config.json/size", 56),
    ("preprocessor_config.json/max_crops", 2**31),
    ("preprocessor_config.json/image_std", [0.5, 0.0, 0.5]),
    ("preprocessor_config.json/pooling_size", [2, 2, 2]),
    ("processor_config.json/image_use_col_tokens", "yes"),
    ("processor_config.json", REMOVE),
]


@pytest.mark.parametrize(("path", "value"), MISTYPED, ids=lambda value: str(value)[-40:])
def test_missing_and_mistyped_fields_are_refused_by_file_and_field(path: str, value: object) -> None:
    files = changed(path, value)
    if path.endswith("rope_scaling_layers"):
        files = changed("config.json/text_config/rope_scaling", {"rope_type": "yarn"}, files)
    error = refusal(files)
    assert isinstance(error, CheckpointError)
    file, *fields = path.split("/")
    assert error.where.startswith(file)
    assert all(field in error.where for field in fields)
    assert "Molmo2" in error.fix or error.fix == "add the file"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 2, 3, 7, 2**31 - 1, 2**64, 10**30]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.none(), st.floats(), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)
BASES = (SMALL_FILES, json_files(DEFAULT), json_files(OLMO))


def places(value: Any, above: Steps = ()) -> Iterator[Steps]:
    """Every place in nested JSON: {"a": [1]} has ("a",) and ("a", 0)."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in inner:
        yield (*above, step)
        yield from places(below, (*above, step))


@st.composite
def mutated(draw: st.DrawFn) -> Files:
    files = copy.deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(list(places(files))))
        place: Any = files
        for step in parents:
            place = place[step]
        if draw(st.booleans()):
            place[last] = draw(JUNK)
        elif isinstance(place, dict):
            del place[last]
    return files


@settings(max_examples=600, deadline=None)
@given(mutated())
def test_damaged_files_are_refused_in_words_or_read_whole(files: Files) -> None:
    made, error = read_or_refused(files)
    assert error is None or (error.fix and len(str(error)) < 1000)
    if made is not None:
        assert Architecture.model_validate_json(made.model_dump_json()) == made
        assert usual_buckets(made)["crops"]
        assert describe(made).parameters > 0


def read_or_refused(files: Files) -> tuple[Architecture | None, MolmoError | None]:
    try:
        return read_architecture(files), None
    except MolmoError as error:
        return None, error


@pytest.mark.parametrize("name", ["allenai/MolmoWeb-4B", "models/molmo_web", "someone/my-molmoweb-tune"])
def test_molmoweb_goes_by_its_name(name: str) -> None:
    assert is_molmoweb("allenai/Molmo2-4B", name)
    assert not is_molmoweb("allenai/Molmo2-4B", None)


def test_a_molmoweb_repository_without_a_mask_policy_is_refused_by_name_before_the_hub_is_asked() -> None:
    with pytest.raises(UnsupportedError, match="MolmoWeb checkpoint whose pin states no mask policy") as caught:
        lock_hub("allenai/MolmoWeb-4B", "0" * 40, name="web", mask_policy=None, progress=False)
    assert "--mask-policy causal" in caught.value.fix
    assert "allenai/Molmo2-4B" in str(caught.value.expected)


def test_a_molmoweb_directory_without_a_mask_policy_is_refused_by_folder_or_configured_name(tmp_path: Any) -> None:
    by_folder, plain = write_tiny(tmp_path / "MolmoWeb-8B"), write_tiny(tmp_path / "checkpoint")
    config = plain / "config.json"
    config.write_text(config.read_text().replace("{", '{"_name_or_path": "allenai/MolmoWeb-8B",', 1))
    for folder in (by_folder, plain):
        with pytest.raises(UnsupportedError, match="MolmoWeb checkpoint whose pin states no mask policy"):
            lock_directory(folder, name="web", mask_policy=None)
    assert lock_directory(plain, name="web", mask_policy="causal").mask_policy == "causal"
