"""A bundle is opened whole or refused in words: every file, every field, and the stamp that spares a second hashing."""

import errno
import json
import platform
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_copies import copy_bundle, edit_manifest, files_of, flip, put_file, set_field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from molmo2_iree.build.plan import Plan
from molmo2_iree.errors import BundleError, MolmoError
from molmo2_iree.manifest import MANIFEST
from molmo2_iree.runtime import bundle as opening
from molmo2_iree.runtime.bundle import open_bundle
from molmo2_iree.runtime.model import load

NOT_RECOMPUTED = {
    "bundling",
    "checkpoint.name",
    "checkpoint.revision",
    "identity",
    "mask_policy",
    "target.flags",
    "target.name",
    "toolchain.jax",
    "weights",
}
"""Fields a runtime has only the manifest's word for, and compares where the caller states what it expects."""


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    return copy_bundle(bundle_folder, tmp_path / "bundle")


def refused(folder: Path, **options: Any) -> BundleError:
    with pytest.raises(BundleError) as refusal:
        open_bundle(folder, **options)
    assert refusal.value.exit_code == 9
    return refusal.value


# --- files ---------------------------------------------------------------------------------------------------------


def test_an_untouched_copy_opens(copy: Path, plan: Plan) -> None:
    bundle = open_bundle(copy, plan.compatibility("cpu"))
    assert bundle.architecture == plan.lock.architecture
    assert bundle.processor_folder == copy / "processor"
    assert open_bundle(str(copy)).buckets == bundle.buckets


def test_one_flipped_byte_in_each_file(copy: Path) -> None:
    open_bundle(copy)
    generator = random.Random(3)
    for name in files_of(copy):
        path = copy / name
        place, mask = generator.randrange(path.stat().st_size), generator.randrange(1, 256)
        flip(path, place, mask)
        assert str(path) in refused(copy).where, f"byte {place} of {name}"
        flip(path, place, mask)
    open_bundle(copy)


@given(st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_byte_anywhere_in_the_manifest(copy: Path, data: st.DataObject) -> None:
    path = copy / MANIFEST
    place = data.draw(st.integers(0, path.stat().st_size - 1))
    mask = data.draw(st.integers(1, 255))
    flip(path, place, mask)
    try:
        assert str(path) in refused(copy).where
    finally:
        flip(path, place, mask)


def test_each_file_missing_cut_or_longer(copy: Path, tmp_path: Path) -> None:
    open_bundle(copy)
    for name in files_of(copy):
        path, kept = copy / name, tmp_path / "kept"
        content = path.read_bytes()
        path.rename(kept)
        assert str(path) in refused(copy).where
        path.mkdir()
        assert str(path) in refused(copy).where
        path.rmdir()
        for other in (b"", content[:-1], content[: len(content) // 2], content + b"\0"):
            path.write_bytes(other)
            assert str(path) in refused(copy).where
        path.unlink()
        kept.rename(path)
    open_bundle(copy)


def test_a_file_that_cannot_be_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(opening, "file_sha256", unreadable)
    refusal = refused(copy)
    assert (refusal.got, refusal.expected) == ("Permission denied", "a readable file")


def test_folders_that_are_no_bundle(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        refusal = refused(folder)
        assert refusal.got == "No such file or directory"
        assert "snakemake all" in refusal.fix
    (tmp_path / MANIFEST).mkdir()
    assert refused(tmp_path).got == "Is a directory"


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "empty": lambda _: "",
    "a list": lambda _: [],
    "null": lambda _: None,
    "not JSON": lambda _: "{'a': 1}",
    "unknown schema": lambda fields: fields | {"schema_version": 2},
    "unknown field": lambda fields: fields | {"extra": 1},
    "a field missing": lambda fields: {name: value for name, value in fields.items() if name != "modules"},
    "a number for a size": lambda fields: fields["files"]["config.json"].update(size=1.5) or fields,
    "no number": lambda fields: fields["compatibility"].update(abi=float("nan")) or fields,
    "deep": lambda _: "[" * 100_000,
    "other order": lambda fields: dict(reversed(fields.items())),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_is_none(copy: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = copy / MANIFEST
    changed = change(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed), encoding="utf-8")
    assert str(path) in refused(copy).where


def test_a_manifest_of_other_bytes(copy: Path) -> None:
    path = copy / MANIFEST
    for content in (b"\xff\xfe\0", path.read_bytes() + b"\n", path.read_bytes().replace(b"\n", b"\r\n")):
        path.write_bytes(content)
        assert str(path) in refused(copy).where


def test_a_digest_that_does_not_fit_the_fields(copy: Path) -> None:
    path = copy / MANIFEST
    text = path.read_text(encoding="utf-8")
    honest = json.loads(text)["content_digest"]
    edit_manifest(copy, lambda fields: fields.update(gates_on="none"))
    changed = json.loads(path.read_text(encoding="utf-8"))["content_digest"]
    path.write_text(text.replace('"gates_on": "cpu"', '"gates_on": "none"'), encoding="utf-8")
    refusal = refused(copy)
    assert str(refusal.got).endswith(honest)
    assert str(refusal.expected).startswith(changed)


# --- fields --------------------------------------------------------------------------------------------------------


def mutated(field: str, value: object) -> object:
    """Another value of the same kind."""
    named = {"target.triple": "riscv64-unknown-linux-gnu", "cache.dtype": "bfloat16", "storage": "bfloat16"}
    if field in named:
        return named[field]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, value[-1] + 1 if value else "--iree-some-flag"]
    return f"{value}x" if isinstance(value, str) else {"factor": 2.0}


def test_one_mutation_of_each_field(copy: Path, plan: Plan) -> None:
    honest = (copy / MANIFEST).read_text(encoding="utf-8")
    open_bundle(copy)
    fields = plan.compatibility("cpu")
    for field, value in fields.items():
        other = mutated(field, value)
        set_field(copy, field, other)
        stated = refused(copy, expected=plan.compatibility("cpu"))
        named = stated.where.endswith(f"field {field}") and (stated.got, stated.expected) == (other, value)
        assert named or field in ("target.triple", "target.cpu"), f"{field}: {stated}"
        if field in NOT_RECOMPUTED:
            open_bundle(copy)
        else:
            assert field.split(".")[0] in refused(copy).where
        (copy / MANIFEST).write_text(honest, encoding="utf-8")
    open_bundle(copy, fields)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
EDITS: dict[type, st.SearchStrategy[object]] = {
    bool: st.booleans(),
    int: NUMBERS,
    float: NUMBERS,
    str: WORDS,
    list: st.lists(NUMBERS | WORDS, max_size=6),
    type(None): NUMBERS | WORDS,
}
"""By the kind of a field's value, what it may be edited to."""


@given(st.data())
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_edit_of_a_single_field_is_refused_by_its_name(copy: Path, plan: Plan, data: st.DataObject) -> None:
    honest = (copy / MANIFEST).read_text(encoding="utf-8")
    fields = plan.compatibility("cpu")
    field = data.draw(st.sampled_from(sorted(fields)))
    value = data.draw(EDITS[type(fields[field])].filter(lambda other: other != fields[field]))
    set_field(copy, field, value)
    try:
        refusal = refused(copy, expected=fields)
    finally:
        (copy / MANIFEST).write_text(honest, encoding="utf-8")
    if field in ("target.triple", "target.cpu"):  # told in words: the bundle is for another machine
        assert field.partition(".")[0] in refusal.where
    else:
        assert refusal.where.endswith(f"field {field}")
        assert (refusal.got, refusal.expected) == (value, fields[field])


def test_each_field_left_out(copy: Path, plan: Plan) -> None:
    honest = (copy / MANIFEST).read_text(encoding="utf-8")
    for field in plan.compatibility("cpu"):
        edit_manifest(copy, lambda fields, gone=field: fields["compatibility"].pop(gone))
        assert field.split(".")[0] in refused(copy, expected=plan.compatibility("cpu")).where
        if field not in NOT_RECOMPUTED - {"target.flags"}:
            assert field.split(".")[0] in refused(copy).where
        (copy / MANIFEST).write_text(honest, encoding="utf-8")


@pytest.mark.parametrize("value", [None, [], {"a": 1}, True], ids=str)
def test_fields_of_another_kind(copy: Path, plan: Plan, value: object) -> None:
    honest = (copy / MANIFEST).read_text(encoding="utf-8")
    for field in plan.compatibility("cpu").keys() - NOT_RECOMPUTED:
        if value != plan.compatibility("cpu")[field]:
            set_field(copy, field, value)
            assert field.split(".")[0] in refused(copy).where
        (copy / MANIFEST).write_text(honest, encoding="utf-8")


def test_a_manifest_of_another_iree(copy: Path) -> None:
    set_field(copy, "toolchain.iree", "3.12.0")
    refusal = refused(copy)
    assert refusal.where.endswith("field toolchain.iree")
    assert refusal.got == "3.12.0"
    assert str(refusal.expected).startswith("3.")


def test_a_runtime_of_another_iree(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "version", lambda _: "3.99.0")
    refusal = refused(copy)
    assert refusal.where.endswith("field toolchain.iree")
    assert (refusal.got, refusal.expected) == ("3.13.0", "3.99.0")


def test_the_first_differing_field_by_name_is_told(copy: Path, plan: Plan) -> None:
    set_field(copy, "weights", "0" * 12)
    set_field(copy, "mask_policy", "causal")
    refusal = refused(copy, expected=plan.compatibility("cpu"))
    assert refusal.where.endswith("field mask_policy")
    assert (refusal.got, refusal.expected) == ("causal", "bidirectional")


def test_a_bundle_of_another_machine_is_refused_in_words(
    plan: Plan, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    refusal = refused(plan.bundle_folder("cpu-arm64"))
    assert refusal.got == "a bundle for aarch64-unknown-linux-gnu"
    assert refusal.expected == "one for x86_64"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert refused(copy).got == "a bundle for x86_64-unknown-linux-gnu"


def test_other_files_under_honest_digests(copy: Path) -> None:
    config = json.loads((copy / "processor/config.json").read_bytes())
    config["adapter_config"]["vit_layers"].reverse()
    put_file(copy, "files", "config.json", json.dumps(config).encode())
    assert refused(copy).where.endswith("field architecture.vision.layers")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"{}"], ids=str)
def test_broken_files_under_honest_digests(copy: Path, content: bytes) -> None:
    put_file(copy, "files", "preprocessor_config.json", content)
    with pytest.raises(MolmoError):
        open_bundle(copy)


def test_an_archive_that_is_none_under_honest_digests(copy: Path) -> None:
    for content in (b"", b"no archive", bytes(4096), (copy / "weights/text.irpa").read_bytes()[:-64]):
        put_file(copy, "archives", "text", content)
        with pytest.raises(BundleError, match=r"text\.irpa"):
            load(copy)


def test_an_archive_without_one_of_its_tensors(copy: Path) -> None:
    put_file(copy, "archives", "text", (copy / "weights/vision.irpa").read_bytes())
    with pytest.raises(BundleError, match=r"text\.irpa, tensor embedding\.base: got not in the archive"):
        load(copy)


def test_files_the_manifest_does_not_list(copy: Path) -> None:
    for group, name in (("modules", "vision-c3"), ("archives", "vision"), ("files", "config.json")):
        honest = (copy / MANIFEST).read_text(encoding="utf-8")
        edit_manifest(copy, lambda fields, at=(group, name): fields[at[0]].pop(at[1]))
        assert str(copy) in refused(copy).where
        (copy / MANIFEST).write_text(honest, encoding="utf-8")
