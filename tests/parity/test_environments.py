"""A record says how its reference ran, and a gate fails where that is not what config/references.yaml expects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from molmo2_iree.build.embedded import write_checkpoint
from molmo2_iree.build.plan import Plan, make_plan
from molmo2_iree.config import Reference, read_config, validate
from molmo2_iree.errors import GateError
from molmo2_iree.parity import specification
from molmo2_iree.parity.differences import KNOWN_DIFFERENCES
from molmo2_iree.parity.expected import check_environment, expected_environment
from molmo2_iree.parity.reference import read_reference, reference_named, split_gate, write_references

REFERENCES: tuple[Reference, ...] = get_args(Reference)
BASIC = {"reference", "device", "dtype", "numpy", "covers", "matrices_rounded_to"}


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The embedded checkpoint where plans look for it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Plan, "checkpoint_folder", folder)
        yield


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_each_reference_states(reference: Reference, plan: Plan, fetched: None, tmp_path: Path) -> None:
    """Written for the text case: the environment is the expected one, in every field."""
    written: list[Path] = []
    write_references(plan, reference, ["text"], tmp_path, written.append)
    assert written == [tmp_path / f"{reference}-text.npz"]
    arrays, environment = read_reference(written[0])
    expected = expected_environment(plan, reference)
    assert set(expected) >= BASIC
    check_environment(f"{reference}-text", environment, expected)
    assert {"input.ids", "merge.embeddings", "prefill.logits", "greedy.tokens", "greedy.logits"} <= set(arrays)


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_field_that_differs_or_lacks_fails(reference: Reference, plan: Plan) -> None:
    expected = expected_environment(plan, reference)
    check_environment("gate", expected | {"more": "is fine"}, expected)
    for field, value in expected.items():
        for wrong in ({"got": "other"}, None, str(value) + "0", 0):
            with pytest.raises(GateError) as caught:
                check_environment("a gate", expected | {field: wrong}, expected)
            assert caught.value.where == f"gate a gate, reference {reference}, {field}"
            assert (caught.value.got, caught.value.expected) == (repr(wrong), repr(value))
        with pytest.raises(GateError, match=rf"reference {reference}, {field}: got nothing stated"):
            check_environment("a gate", {k: v for k, v in expected.items() if k != field}, expected)


@pytest.mark.parametrize("environment", [None, [], "numpy", 3])
def test_no_environment_fails(environment: object, plan: Plan) -> None:
    with pytest.raises(GateError, match="got nothing stated"):
        check_environment("gate", environment, expected_environment(plan, "native"))


def pinned(**versions: str) -> Plan:
    raw: dict[str, Any] = read_config(Path("config/default.yaml")).model_dump(mode="json")
    for reference in raw["references"].values():
        reference["versions"] |= versions
    return make_plan(validate(raw, "config/x.yaml"))


def test_other_versions_are_refused_before_anything_is_computed(
    fetched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specification, "specify", lambda *_, **__: pytest.fail("computed"))
    with pytest.raises(GateError, match=r"reference specification, numpy: got '[\d.]+', expected '1\.0'\. Fix: pip"):
        write_references(pinned(numpy="1.0"), "specification", ["text"], tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_other_pins_are_other_references(plan: Plan) -> None:
    assert pinned(numpy="1.0").reference_folder != plan.reference_folder


@pytest.mark.parametrize("reason", ["crash", "not finite"])
def test_a_reference_that_fails_leaves_nothing(
    reason: str, plan: Plan, fetched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> dict[str, np.ndarray]:
        if reason == "crash":
            raise MemoryError("crash")
        return {"prefill.logits": np.array([np.nan])}

    monkeypatch.setattr(specification, "specify", fails)
    monkeypatch.setattr(specification, "greedy", lambda *_, **__: ([0], np.zeros((1, 1))))
    with pytest.raises((MemoryError, GateError), match=reason):
        write_references(plan, "specification", ["text"], tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_versions_are_those_of_the_constraints(plan: Plan) -> None:
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    stated = [pair for pinned in plan.config.references.values() for pair in pinned.versions.items()]
    assert all(pins[name] == version for name, version in stated)
    assert {"torch", "transformers", "mlx", "mlx-vlm", "numpy", "safetensors"} == {name for name, _ in stated}


def test_a_reference_nobody_knows() -> None:
    with pytest.raises(GateError, match=r"reference vllm: got no such reference, expected one of specification, "):
        reference_named("vllm")


@pytest.mark.parametrize("reference", REFERENCES)
def test_gate_names(reference: Reference) -> None:
    for case in ("text", "photo", "two-pictures"):
        found, named = split_gate(f"{reference}-{case}")
        assert (found, named.name) == (reference, case)


@pytest.mark.parametrize("gate", ["", "native", "torch-photo", "mlxshipped-photo", "native-none", "mlx-shipped-none"])
def test_other_gate_names_are_refused(gate: str) -> None:
    with pytest.raises(GateError, match=r"no known reference|no such case"):
        split_gate(gate)


def test_known_differences_are_in_contract_order() -> None:
    rows = [difference.row for difference in KNOWN_DIFFERENCES]
    assert rows == sorted(set(rows))
    assert {6, 11, 12, 13} <= set(rows)
    assert all(difference.wins.startswith("official") for difference in KNOWN_DIFFERENCES)
