"""Run a bundle on a case and record its differences from a reference, stage by stage in the order of the line.

Production modules are compared at the bucket the runtime chooses; diagnostic modules show what lies between. Nothing
here fails on a number: a record is evidence, ``judge`` decides.
"""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from molmo2_iree.build.plan import Plan
from molmo2_iree.files import write_whole
from molmo2_iree.identity import digest
from molmo2_iree.parity.cases import Case
from molmo2_iree.parity.compare import compare
from molmo2_iree.parity.expected import INFORMATIONAL
from molmo2_iree.parity.measure_text import decoder
from molmo2_iree.parity.reference import read_reference, split_gate
from molmo2_iree.parity.table import hand_groups
from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.device import to_host
from molmo2_iree.runtime.model import Model, load
from molmo2_iree.stages import Program, dimensions, tap_names

SCHEMA = 1
Arrays = dict[str, np.ndarray]


def write_record(plan: Plan, target: str, gate: str, reference: Path, output: Path) -> dict[str, Any]:
    """Measure one gate of one target and write its record."""
    wanted, environment = read_reference(reference)
    name, case = split_gate(gate)
    model = load(plan.bundle_folder(target), plan.compatibility(target))
    for program in plan.tap_programs:
        model.add_module(program, plan.module_path(target, program))
    taps = {program.stage: program for program in plan.tap_programs}
    record = {
        "schema_version": SCHEMA,
        "gate": gate,
        "target": target,
        "storage": plan.config.weights.storage,
        "compatibility_digest": model.bundle.manifest.compatibility_digest,
        "reference": environment,
        "informational": name in INFORMATIONAL,
        "measured_with": {"iree": version("iree-base-runtime"), "numpy": np.__version__, "machine": platform.machine()},
        "comparisons": measure(model, taps, case, wanted),
    }
    write_whole(output, record_text(record))
    return record


def record_text(record: Mapping[str, Any]) -> str:
    """A record as JSON whose ``content_digest`` covers all else, so that an edit by hand shows."""
    return json.dumps({**record, "content_digest": digest(record)}, indent=1)


def measure(model: Model, taps: dict[str, Program], case: Case, wanted: Arrays) -> list[dict[str, Any]]:
    """Every comparison of a case, in first-divergence order."""
    look = model.architecture.processor
    pictures = case.open(look.image_size, look.patch_size, look.overlap_margins)
    payload = model.prepare(case.messages(), pictures)
    if case.fills:
        payload = model.prepare(case.filled(len(payload.ids)).messages(), pictures)
    found = _inputs(payload, wanted)
    if any(entry.get("unequal") != 0 for entry in found if entry["kind"] == "exact"):
        return found  # on other inputs every later stage differs, and says nothing
    tokens = np.zeros((0, model.architecture.text.width), np.float32)
    if payload.images:
        arrays, tokens = _vision_and_connector(model, taps, payload)
        for name, got in arrays.items():
            if name in wanted:  # the native reference shows neither the mask nor the valid rows
                found.append(compare(name, got, wanted[name], exact=got.dtype.kind == "i"))
        found.append(compare("vision.features.module", arrays["vision.features.module"], wanted["vision.features"]))
        kept = (wanted["input.groups"] >= 0).any(1)
        found.append(compare("connector.tokens.module", tokens, wanted["connector.tokens"][kept]))
        found += _table(model, taps["connector"], wanted)
    return found + decoder(model, taps, case, payload, tokens, wanted)


def _inputs(payload: Payload, wanted: Arrays) -> list[dict[str, Any]]:
    pairs = {
        "ids": payload.ids,
        "types": payload.types,
        "crops": payload.crops,
        "groups": payload.groups,
        "patches": payload.patches,
    }
    return [compare(f"input.{name}", got, wanted[f"input.{name}"], exact=True) for name, got in pairs.items()]


def _vision_and_connector(model: Model, taps: dict[str, Program], payload: Payload) -> tuple[Arrays, np.ndarray]:
    """(arrays by name: taps first, then what the production modules gave; image tokens of the production modules)."""
    parts: dict[str, list[np.ndarray]] = {}
    tokens = []
    for image in payload:
        produced = model.vision(image)
        tapped = _tap(model, taps["vision"], {"patches": image.patches}, image.crops)
        groups = _tap(
            model, taps["connector"], {"features": tapped["features"], "groups": image.groups}, len(image.groups)
        )
        produced_tokens = model.connector(image, produced)
        tokens.append(produced_tokens)
        arrays = {f"vision.{name}": value for name, value in tapped.items()}
        arrays |= {"vision.features.module": to_host(produced)[: image.crops]}
        arrays |= {f"connector.{name}": value for name, value in groups.items()}
        for name, value in arrays.items():
            parts.setdefault(name, []).append(value)
    return {name: np.concatenate(values) for name, values in parts.items()}, np.concatenate(tokens)


def _tap(model: Model, program: Program, given: Arrays, rows: int) -> Arrays:
    """Run a diagnostic program on arguments padded to its bucket; its taps, then its results, cut to ``rows``."""
    sizes = dimensions(program, model.architecture)
    lengths = {"patches": sizes["C"], "features": sizes["C"], "groups": sizes["G"]}
    padded = {}
    for name, value in given.items():
        full = np.full((lengths[name], *value.shape[1:]), -1 if name == "groups" else 0, value.dtype)
        full[: len(value)] = value
        padded[name] = full
    results = [to_host(value) for value in model.call(program, padded)]
    names = {"vision": ["features"], "connector": ["tokens", "valid"]}[program.stage]
    after = tap_names(program.stage, model.architecture)
    by_name = dict(zip([*names, *after], results, strict=True))
    return {name: by_name[name][:rows] for name in [*after, *names]}


def _table(model: Model, program: Program, wanted: Arrays) -> list[dict[str, Any]]:
    """The connector on the hand-made table, as far as the reference shows it."""
    given = {"features": wanted["input.table_features"], "groups": hand_groups(model.architecture.processor.group_size)}
    tapped = _tap(model, program, given, len(given["groups"]))
    tapped = {name: got for name, got in tapped.items() if f"connector.{name}.table" in wanted}
    expected = {name: wanted[f"connector.{name}.table"] for name in tapped}
    filled = (given["groups"] >= 0).any(1)  # pooling over no patch is not defined, only that its token is zero
    tapped["pooled"], expected["pooled"] = tapped["pooled"][filled], expected["pooled"][filled]
    return [
        compare(f"connector.{name}.table", got, expected[name], exact=got.dtype.kind == "i")
        for name, got in tapped.items()
    ]
