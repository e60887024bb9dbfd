"""Run a bundle on a case and record its differences from a reference, stage by stage in the order of the line.

Production modules are compared at the bucket the runtime chooses; diagnostic modules show what lies between. Nothing
here fails on a number: a record is evidence, ``judge`` decides.
"""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from molmo2_iree.build.plan import Plan
from molmo2_iree.files import write_whole
from molmo2_iree.parity.cases import Case
from molmo2_iree.parity.compare import compare
from molmo2_iree.parity.expected import INFORMATIONAL
from molmo2_iree.parity.reference import read_reference, split_gate
from molmo2_iree.parity.table import hand_groups
from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.preprocess.prompt import messages_for
from molmo2_iree.runtime.device import to_host
from molmo2_iree.runtime.model import Cache, Model, load
from molmo2_iree.stages import Program, dimensions, tap_names

SCHEMA = 1
EXTENDED = 12
"""Greedy tokens appended in one piece to check the extend stage."""

FORMER_OWNER = "Name five things that are red, five that are green, and say of each whether it can be eaten raw. " * 2
"""Fills a slot before the measured prompt does, with more rows than a short prompt overwrites."""

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
    write_whole(output, json.dumps(record, indent=1))
    return record


def measure(model: Model, taps: dict[str, Program], case: Case, wanted: Arrays) -> list[dict[str, Any]]:
    """Every comparison of a case, in first-divergence order."""
    look = model.architecture.processor
    payload = model.prepare(case.messages(), case.open(look.image_size, look.patch_size, look.overlap_margins))
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
    return found + _decoder(model, taps, case, payload, tokens, wanted)


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
    """The connector on the hand-made table, where the reference has it."""
    if "input.table_features" not in wanted:
        return []
    given = {"features": wanted["input.table_features"], "groups": hand_groups(model.architecture.processor.group_size)}
    tapped = _tap(model, program, given, len(given["groups"]))
    expected = {name: wanted[f"connector.{name}.table"] for name in tapped}
    filled = (given["groups"] >= 0).any(1)  # pooling over no patch is not defined, only that its token is zero
    tapped["pooled"], expected["pooled"] = tapped["pooled"][filled], expected["pooled"][filled]
    return [
        compare(f"connector.{name}.table", got, expected[name], exact=got.dtype.kind == "i")
        for name, got in tapped.items()
    ]


def _ranks(model: Model, program: Program, payload: Payload, tokens: np.ndarray) -> dict[str, Any]:
    """Which image token each position takes, scanned in the graph, against a count on the host; -1 where none."""
    bucket, length = program.sizes()["S"], len(payload.ids)
    image_tokens = np.zeros((bucket, tokens.shape[1]), np.float32)
    image_tokens[: len(tokens)] = tokens
    arguments = {
        "ids": np.pad(payload.ids, (0, bucket - length)),
        "image_tokens": image_tokens,
        "count": np.int32(len(tokens)),
    }
    ranks = to_host(model.call(program, arguments)[1])[:length]
    wanted = np.full(length, -1)
    places = [place for place, token in enumerate(payload.ids) if token == model.architecture.tokens.image_patch]
    for rank, place in enumerate(places):
        wanted[place] = rank
    return compare("merge.image_rank", ranks, wanted, exact=True)


def _decoder(
    model: Model, taps: dict[str, Program], case: Case, payload: Payload, tokens: np.ndarray, wanted: Arrays
) -> list[dict[str, Any]]:
    length, slot = len(payload.ids), case.slot
    embeddings = model.merge(payload, tokens)
    found = [_ranks(model, taps["merge"], payload, tokens)]
    found.append(compare("merge.embeddings", to_host(embeddings)[:length], wanted["merge.embeddings"]))
    if "prefill.logits" not in wanted:
        return found  # a reference without this decoder; judge knows which may be
    found += _tapped_prefill(model, taps["prefill"], payload, to_host(embeddings), slot, wanted)
    cache, companions = used_cache(model, slot)
    before = [to_host(array) for array in cache.arrays]
    logits = [model.prefill_embeddings(payload, embeddings, cache, slot)]
    found.append(compare("prefill.logits.module", logits[0], wanted["prefill.logits"][-1]))
    found += _cache_rows(model, cache, before, slot, length, wanted)
    said = [int(token) for token in wanted["greedy.tokens"]]
    found.append(_extended(model, payload, embeddings, slot, said, wanted))
    for step, token in enumerate(said[:-1]):
        positions = {slot: length + step} | {other: at + step for other, at in companions.items()}
        ids = {slot: token} | dict.fromkeys(companions, int(payload.ids[-1]))
        logits.append(model.decode(ids, positions, cache)[slot])
    found.append(compare("decode.logits", np.stack(logits), wanted["greedy.logits"]))
    found.append(compare("decode.tokens", np.argmax(np.stack(logits), -1), wanted["greedy.tokens"], exact=True))
    return found


def _tapped_prefill(
    model: Model, program: Program, payload: Payload, embeddings: np.ndarray, slot: int, wanted: Arrays
) -> list[dict[str, Any]]:
    length, bucket = len(payload.ids), program.sizes()["S"]
    arguments = {
        "embeddings": np.pad(embeddings[:length], ((0, bucket - length), (0, 0))),
        "types": np.pad(payload.types, (0, bucket - length)),
        "length": np.int32(length),
        "slot": np.int32(slot),
    }
    results = [to_host(value) for value in model.call(program, arguments, model.new_cache())]
    names = tap_names("prefill", model.architecture)
    found = []
    for name, value in zip(names, results[1:], strict=True):
        stage = "prefill.logits" if name == "all_logits" else f"prefill.{name}"
        found.append(compare(stage, value[:length], wanted[stage]))
    return found


def used_cache(model: Model, slot: int) -> tuple[Cache, dict[int, int]]:
    """A cache in use: ``slot`` holds a former owner's rows, another slot a companion's; (cache, slot -> its length)."""
    cache = model.new_cache()
    owner = model.prepare(messages_for(FORMER_OWNER), [])
    other = (slot + 1) % model.bundle.cache.slots
    companions = {other: len(owner.ids)} if other != slot else {}
    for used in (slot, *companions):
        model.prefill(owner, cache, used)
    return cache, companions


def _cache_rows(
    model: Model, cache: Cache, before: list[np.ndarray], slot: int, length: int, wanted: Arrays
) -> list[dict[str, Any]]:
    """Rows the prompt wrote, and every other row of the cache, which must hold the bytes it held ``before``."""
    found = []
    for layer in range(model.architecture.text.layers):
        keys, values = (to_host(array) for array in cache.arrays[2 * layer : 2 * layer + 2])
        found.append(compare(f"prefill.keys.{layer}", keys[slot, :, :, :length], wanted[f"prefill.keys.{layer}"]))
        found.append(compare(f"prefill.values.{layer}", values[slot, :, :length], wanted[f"prefill.values.{layer}"]))
        old_keys, old_values = before[2 * layer : 2 * layer + 2]
        keys[slot, :, :, :length], values[slot, :, :length] = (
            old_keys[slot, :, :, :length],
            old_values[slot, :, :length],
        )
        changed = np.array([np.count_nonzero(keys != old_keys), np.count_nonzero(values != old_values)])
        found.append(compare(f"prefill.untouched.{layer}", changed, np.zeros(2, int), exact=True))
    return found


def _extended(
    model: Model, payload: Payload, embeddings: Any, slot: int, said: list[int], wanted: Arrays
) -> dict[str, Any]:
    cache, count = model.new_cache(), min(EXTENDED, len(said) - 1, model.bundle.buckets.extend[-1])
    model.prefill_embeddings(payload, embeddings, cache, slot)
    logits = model.extend(said[:count], len(payload.ids), cache, slot)
    return compare("extend.logits", logits, wanted["greedy.logits"][count])
