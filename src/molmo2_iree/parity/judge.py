"""Hold a record against the tolerances: the first divergent stage decides, and is named with its worst element."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from molmo2_iree.config import Tolerance
from molmo2_iree.errors import GateError
from molmo2_iree.files import write_whole
from molmo2_iree.parity.measure import SCHEMA

MEASURE_AGAIN = "delete the record and run: snakemake gates"
REQUIRED = (
    "input.ids",
    "input.patches",
    "merge.embeddings",
    "prefill.logits.module",
    "extend.logits",
    "decode.logits",
    "decode.tokens",
)
"""Stages without which a record proves nothing."""


def tolerance_key(stage: str) -> str:
    """``vision.block.3`` and ``vision.features.module`` are judged as ``vision.block`` and ``vision.features``."""
    head, _, tail = stage.rpartition(".")
    return head if tail.isdigit() or tail == "module" else stage


def judge(record: Mapping[str, Any], tolerances: Mapping[str, Tolerance]) -> list[dict[str, Any]]:
    """One verdict per comparison: stage, passed, margin (worst / allowed), and the worst element where it failed."""
    stages = [entry["stage"] for entry in record["comparisons"]]
    missing = [stage for stage in REQUIRED if stage not in stages]
    failed_inputs = any(entry["kind"] == "exact" and entry.get("unequal") != 0 for entry in record["comparisons"])
    if missing and not failed_inputs:
        raise GateError(
            f"record {record['gate']}",
            got=f"no comparison of {missing[0]}",
            expected="every stage of the line",
            fix=MEASURE_AGAIN,
        )
    return [_judge_one(entry, tolerances) for entry in record["comparisons"]]


def _judge_one(entry: Mapping[str, Any], tolerances: Mapping[str, Tolerance]) -> dict[str, Any]:
    stage, verdict = entry["stage"], {"stage": entry["stage"], "kind": entry["kind"]}
    if entry["got_shape"] != entry["shape"]:
        return verdict | {"passed": False, "why": f"shape {entry['got_shape']}, expected {entry['shape']}"}
    if entry["kind"] == "exact":
        passed = entry["unequal"] == 0
        return verdict | {"passed": passed} | ({} if passed else {"why": _where(entry["first"], "equal")})
    if not entry["finite"]:
        return verdict | {"passed": False, "why": _where(entry["frontier"][0], "finite")}
    if tolerance_key(stage) not in tolerances:
        raise GateError(
            f"tolerances, {tolerance_key(stage)}",
            got="no entry",
            expected="one for every measured stage",
            fix="add it to config/tolerances.yaml",
        )
    allowed = tolerances[tolerance_key(stage)]
    worst = max(entry["frontier"], key=lambda e: _margin(e, allowed), default=None)
    margin = _margin(worst, allowed) if worst else 0.0
    rms = _ratio(entry["rms"], allowed.rms)
    verdict |= {
        "passed": margin <= 1 and rms <= 1,
        "margin": margin,
        "rms_margin": rms,
        "rms": entry["rms"],
        "worst": worst,
    }
    if not verdict["passed"]:
        limit = allowed.atol + allowed.rtol * abs(worst["expected"]) if worst else 0.0
        verdict["why"] = (
            _where(worst, f"{limit:.3g}")
            if worst and margin > 1
            else f"RMS {entry['rms']:.3g}, allowed {allowed.rms:.3g}"
        )
    return verdict


def _margin(element: Mapping[str, Any], allowed: Tolerance) -> float:
    return _ratio(abs(element["got"] - element["expected"]), allowed.atol + allowed.rtol * abs(element["expected"]))


def _ratio(value: float, limit: float) -> float:
    return value / limit if limit else (0.0 if value == 0 else math.inf)


def _where(element: Mapping[str, Any], allowed: str) -> str:
    return f"at {element['index']}: got {element['got']}, expected {element['expected']}, allowed {allowed}"


def write_verdict(path: Path, output: Path, tolerances: Mapping[str, Tolerance]) -> str:
    """Judge a record's file and write the verdict; returns a line. GateError names the first divergent stage."""
    record = read_record(path)
    try:
        verdicts = judge(record, tolerances)
    except (KeyError, TypeError, IndexError) as error:
        raise GateError(
            str(path), got=f"no usable record ({error!r})", expected="a record as written by measure", fix=MEASURE_AGAIN
        ) from error
    failed = [verdict for verdict in verdicts if not verdict["passed"]]
    if failed:
        first = failed[0]
        raise GateError(
            f"gate {record['gate']} on {record['target']}, first divergent stage {first['stage']}",
            got=f"a difference {first['why']}; {len(failed)} of {len(verdicts)} stages fail",
            expected=f"agreement with {record['reference']['reference']} within config/tolerances.yaml",
            fix=f"compare that stage; the evidence is {path}",
        )
    write_whole(
        output, json.dumps({"gate": record["gate"], "target": record["target"], "verdicts": verdicts}, indent=1)
    )
    worst = max((v for v in verdicts if "margin" in v), key=lambda v: v["margin"])
    closest = f"closest to its limit {worst['stage']} at {worst['margin']:.2f}"
    return f"passed {record['gate']}: {len(verdicts)} comparisons, {closest}"


def read_record(path: Path) -> dict[str, Any]:
    """A record; GateError for duplicate keys, another schema or a truncated file."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key appears twice")
        return dict(pairs)

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    try:
        record = json.loads(path.read_bytes(), object_pairs_hook=unique, parse_constant=no_constant)
        if not isinstance(record, dict) or record["schema_version"] != SCHEMA:
            raise ValueError(f"schema_version is not {SCHEMA}")
    except (OSError, ValueError, KeyError) as error:
        raise GateError(
            str(path), got=f"no usable record ({error})", expected="a record as written by measure", fix=MEASURE_AGAIN
        ) from error
    return record
