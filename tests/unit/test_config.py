"""Configurations: what is refused, in which words; the schema and the list of keys stay in step with the code."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from molmo2_iree.build.plan import make_plan
from molmo2_iree.build.workflow import RUNNING, hold
from molmo2_iree.config import SHARED, Config, first_that_fits, json_schema, merged, read_config, validate
from molmo2_iree.errors import BuildError, CheckpointError, ConfigError
from molmo2_iree.identity import digest

DEFAULT = Path("config/family-qwen.yaml")
LIMIT = "tolerances/float32/vision.block/atol"


def raw(**edits: Any) -> dict[str, Any]:
    """The default with dotted keys set (a key with a slash is split at slashes); None deletes."""
    content = json.loads(json.dumps(read_config(DEFAULT).model_dump(mode="json")))
    for dotted, value in edits.items():
        *parents, key = dotted.split("/") if "/" in dotted else dotted.split(".")
        inner = content
        for parent in parents:
            inner = inner[parent]
        if value is None:
            del inner[key]
        else:
            inner[key] = value
    return content


REFUSED = {
    # Unknown, missing, wrong type.
    "unknown key": ("portt", 8000, "portt: got an unknown key"),
    "unknown inner key": ("cache.slot", 4, "cache.slot: got an unknown key"),
    "missing key": ("cache.slots", None, "cache.slots: got"),
    "missing part": ("gates", None, "gates: got"),
    "a word for a number": ("cache.slots", "four", "cache.slots: got 'four'"),
    "a number as a word": ("cache.slots", "4", "cache.slots: got '4'"),
    "a fraction": ("cache.slots", 4.5, "cache.slots: got 4.5"),
    "a truth value": ("cache.slots", True, "cache.slots: got True"),
    "a number for a list": ("buckets.tokens", 256, "buckets.tokens: got 256"),
    "a list for a mapping": ("buckets", [256], "buckets: got [256]"),
    "an unknown dtype": ("weights.storage", "float16", "weights.storage: got 'float16'"),
    "an unknown reference": ("gates.references", ["torch"], "gates.references.0: got 'torch'"),
    # References.
    "a reference without its environment": (
        "references/mlx",
        None,
        "gates.references.2: got 'mlx', expected one of references: specification, native, mlx-shipped",
    ),
    "a reference nobody knows": ("references/torch", {}, "references.torch"),
    "an environment without versions": ("references/native/versions", {}, "references.native.versions: got {}"),
    "an environment without a device": ("references/native/device", None, "references.native.device: got"),
    "a version that is a number": ("references/native/versions/torch", 2.13, "references.native.versions.torch: got"),
    # Sizes.
    "a bucket of 0": ("buckets.tokens", [0, 768], "buckets.tokens.0: got 0"),
    "a negative bucket": ("buckets.crops", [-3, 9], "buckets.crops.0: got -3"),
    "no bucket": ("buckets.extend", [], "buckets.extend: got []"),
    "descending buckets": ("buckets.tokens", [768, 256], "buckets.tokens: got [768, 256]"),
    "a bucket twice": ("buckets.tokens", [256, 256], "buckets.tokens: got [256, 256]"),
    "more tokens than rows": ("buckets.tokens", [256, 2048], "buckets.tokens: got [256, 2048]"),
    "more context than rows": ("buckets.context", [256, 2048], "buckets.context: got [256, 2048]"),
    "less context than rows": ("buckets.context", [256, 512], "buckets.context: got [256, 512]"),
    "more slots than slots": ("buckets.slots", [1, 8], "buckets.slots: got [1, 8]"),
    "pieces beyond the context": ("buckets.extend", [16, 512], "buckets.extend: got [16, 512]"),
    # Targets.
    "an unknown target": ("targets", ["cpu", "cuda"], "targets.1: got 'cuda', expected one of known_targets: cpu"),
    "no target": ("targets", [], "targets: got []"),
    "a target twice": ("targets", ["cpu", "cpu"], "targets: got ['cpu', 'cpu']"),
    "a target's odd name": ("known_targets/My CPU", {}, "known_targets.My CPU"),
    "the host's level": ("known_targets.cpu.cpu", "host", "known_targets.cpu.cpu: got 'host', expected a named"),
    "the native level": ("known_targets.cpu.cpu", "native", "known_targets.cpu.cpu: got 'native'"),
    "the host by a flag": (
        "known_targets.cpu.flags",
        ["--iree-llvmcpu-target-cpu=host"],
        "known_targets.cpu.flags: got ['--iree-llvmcpu-target-cpu=host']",
    ),
    "gates somewhere unknown": ("known_targets.cpu.gates_on", "gpu", "known_targets.cpu.gates_on: got 'gpu'"),
    # Limits.
    "not a number": (LIMIT, float("nan"), "tolerances.float32.vision.block.atol: got nan"),
    "no limit at all": (LIMIT, float("inf"), "tolerances.float32.vision.block.atol: got inf"),
    "a negative limit": (LIMIT, -1.0, "tolerances.float32.vision.block.atol: got -1.0"),
    "a limit YAML reads as a word": (LIMIT, yaml.safe_load("1e-5"), "tolerances.float32.vision.block.atol: got '1e-5'"),
    "a limit for no reason": ("tolerances/float32/vision.block/reason", "", "tolerances.float32.vision.block.reason"),
    "no plain value": ("checkpoint", {1, 2}, "got Object of type set"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    key, value, message = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        validate(raw(**{key: value}), "config/x.yaml")
    assert str(caught.value).startswith(("config/x.yaml, ", "config/x.yaml: "))
    assert message in str(caught.value)
    assert "edit config/x.yaml" in caught.value.fix
    assert "Value error" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("buckets.crops", [3, 5], "buckets.crops: got [3, 5], expected sizes from 2 up to exactly 9"),
        ("buckets.crops", [1, 9], "buckets.crops: got [1, 9], expected sizes from 2"),
    ],
)
def test_sizes_that_contradict_the_checkpoint(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        make_plan(validate(raw(**{key: value}), "config/x.yaml"))


def test_more_rows_than_the_checkpoint_has_positions() -> None:
    config = validate(raw(**{"cache.context": 4096, "buckets.context": [256, 4096]}), "config/x.yaml")
    with pytest.raises(ConfigError, match=r"cache.context: got 4096, expected at most 2048 positions"):
        make_plan(config)


def test_a_lock_that_is_not_there() -> None:
    with pytest.raises(CheckpointError, match=r"locks/none.yaml: got No such file .* molmo2 lock"):
        make_plan(validate(raw(checkpoint="config/locks/none.yaml"), "config/x.yaml"))


@pytest.mark.parametrize(
    ("text", "message"), [("a: [1", "no YAML"), ("- 1\n", "got list, expected a mapping"), ("", "expected a mapping")]
)
def test_files_that_hold_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    for name in SHARED:
        (tmp_path / name).write_text(f"{name[:-5]}: {{}}\n", encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_config(path)
    with pytest.raises(ConfigError, match=r"none.yaml: got No such file"):
        read_config(tmp_path / "none.yaml")


def test_a_key_left_out_is_its_default() -> None:
    short = raw(**{"gates.greedy_tokens": None, "known_targets.cpu.flags": None, "cache.dtype": None, "weights": None})
    assert validate(short, "x") == read_config(DEFAULT)


def test_the_resolved_file_is_the_same_configuration(tmp_path: Path) -> None:
    config = read_config(DEFAULT)
    path = tmp_path / "resolved.json"
    path.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    assert read_config(path) == config
    assert digest(read_config(path).model_dump(mode="json")) == digest(config.model_dump(mode="json"))


def test_mappings_are_merged_as_documented() -> None:
    below, above = {"a": {"b": 1}, "c": [1]}, {"a": {"d": 2}, "c": [2]}
    assert merged(below, above) == {"a": {"b": 1, "d": 2}, "c": [2]}
    assert (below, above) == ({"a": {"b": 1}, "c": [1]}, {"a": {"d": 2}, "c": [2]})


def test_first_that_fits() -> None:
    assert [first_that_fits((3, 5, 9), needed) for needed in (1, 3, 4, 9, 10)] == [3, 3, 5, 9, None]


def test_the_schema_is_the_code_s() -> None:
    written = Path("config/schema.json").read_text(encoding="utf-8")
    remedy = (
        """python -c 'from molmo2_iree.config import json_schema; print(json_schema(), end="")' > config/schema.json"""
    )
    assert written == json_schema(), f"write it again: {remedy}"


def test_every_key_is_explained() -> None:
    text = Path("config/README.md").read_text(encoding="utf-8")
    named = {word.rpartition(".")[2] for word in text.split("`")[1::2]}
    schema = Config.model_json_schema()
    keys = {key for part in (schema, *schema["$defs"].values()) for key in part.get("properties", {})}
    parts = {"buckets", "cache", "gates", "toolchain", "weights"}
    assert keys - parts <= named
    assert all(f"`{part}." in text for part in parts)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / RUNNING
    with hold(path), pytest.raises(BuildError, match="another snakemake building"):
        hold(path)
    hold(path).close()
