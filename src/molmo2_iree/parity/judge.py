"""Hold a record against the tolerances: the first divergent stage decides, and is named with its worst element."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from molmo2_iree.config import Reference, Tolerance
from molmo2_iree.errors import GateError
from molmo2_iree.files import write_whole
from molmo2_iree.identity import digest
from molmo2_iree.parity.expected import INFORMATIONAL, STAGES, check_environment
from molmo2_iree.parity.measure import SCHEMA
from molmo2_iree.parity.reference import split_gate

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

REQUIRED_OF_PICTURES = ("vision.features.module", "connector.tokens.module", "connector.tokens.table")
REQUIRED_OF_TURNS = ("extend.logits.turn",)

SUFFIXES = ("module", "table", "turn")
"""Last parts of a stage's name that say in which way it was run; the tolerance is the stage's own."""


def tolerance_key(stage: str) -> str:
    """``vision.block.3``, ``vision.features.module`` and ``connector.query.table`` are judged without the last part."""
    head, _, tail = stage.rpartition(".")
    return head if tail.isdigit() or tail in SUFFIXES else stage


def required(gate: str) -> tuple[str, ...]:
    """What the record of a gate must speak about: a case with pictures or a second turn needs more."""
    _, case = split_gate(gate)
    return REQUIRED + REQUIRED_OF_PICTURES * bool(case.pictures) + REQUIRED_OF_TURNS * bool(case.followup)


def judge(
    record: Mapping[str, Any], tolerances: Mapping[str, Tolerance], covers: Sequence[str] = STAGES
) -> list[dict[str, Any]]:
    """One verdict per comparison: stage, passed, margin (worst / allowed), and the worst element where it failed.

    ``covers`` are the stages that the reference must have spoken about.
    """
    stages = [entry["stage"] for entry in record["comparisons"]]
    spoken = ("input", *covers)
    missing = [stage for stage in required(record["gate"]) if stage.partition(".")[0] in spoken and stage not in stages]
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


def write_verdict(
    path: Path,
    output: Path,
    tolerances: Mapping[str, Tolerance],
    expected: Callable[[Reference], Mapping[str, Any]],
) -> str:
    """Judge a record's file and write the verdict; returns a line. GateError names the first divergent stage.

    ``expected`` gives the environment that a reference must have run in.
    """
    record = read_record(path)
    try:
        reference, _ = split_gate(record["gate"])
        wanted = expected(reference)
        check_environment(record["gate"], record["reference"], wanted)
        verdicts = judge(record, tolerances, wanted["covers"])
        head = {name: record[name] for name in ("gate", "target", "informational")} | {"covers": wanted["covers"]}
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise GateError(
            str(path), got=f"no usable record ({error!r})", expected="a record as written by measure", fix=MEASURE_AGAIN
        ) from error
    if head["informational"] is not (reference in INFORMATIONAL):
        raise GateError(
            f"record {path}, informational",
            got=head["informational"],
            expected=f"{reference in INFORMATIONAL} for reference {reference}",
            fix=MEASURE_AGAIN,
        )
    return (_note if head["informational"] else _decide)(head, verdicts, path, output)


def _decide(head: dict[str, Any], verdicts: list[dict[str, Any]], path: Path, output: Path) -> str:
    failed = [verdict for verdict in verdicts if not verdict["passed"]]
    if failed:
        first = failed[0]
        raise GateError(
            f"gate {head['gate']} on {head['target']}, first divergent stage {first['stage']}",
            got=f"a difference {first['why']}; {len(failed)} of {len(verdicts)} stages fail",
            expected="agreement with the reference within config/tolerances.yaml",
            fix=f"compare that stage; the evidence is {path}",
        )
    write_whole(output, json.dumps(head | {"verdicts": verdicts}, indent=1))
    worst = max((v for v in verdicts if "margin" in v), key=lambda v: v["margin"])
    only = "" if len(head["covers"]) == len(STAGES) else f" of {', '.join(head['covers'])} only"
    closest = f"closest to its limit {worst['stage']} at {worst['margin']:.2f}"
    return f"passed {head['gate']}: {len(verdicts)} comparisons{only}, {closest}"


def _note(head: dict[str, Any], verdicts: list[dict[str, Any]], path: Path, output: Path) -> str:
    """Write how a reference that is known to be wrong differs: its stages agree or not, and none passes."""
    failed = [verdict for verdict in verdicts if not verdict["passed"]]
    if any(verdict["stage"].startswith("input.") for verdict in failed):
        raise GateError(
            f"gate {head['gate']} on {head['target']}, {failed[0]['stage']}",
            got=f"other inputs {failed[0]['why']}",
            expected="the inputs the reference had, without which its differences say nothing",
            fix=f"compare the inputs; the evidence is {path}",
        )
    first = failed[0] if failed else None
    agreements = [{"agrees" if name == "passed" else name: v for name, v in entry.items()} for entry in verdicts]
    content = head | {
        "first_difference": first and {name: value for name, value in first.items() if name != "passed"},
        "differing_stages": len(failed),
        "verdicts": agreements,
    }
    write_whole(output, json.dumps(content, indent=1))
    said = f"first differs at {first['stage']} {first['why']}" if first else "differs nowhere"
    return f"noted {head['gate']}, which decides nothing: {said}; {len(failed)} of {len(verdicts)} stages differ"


def read_record(path: Path) -> dict[str, Any]:
    """A record; GateError for duplicate keys, another schema, content that was edited or a truncated file."""

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
        stated = record.pop("content_digest")
        if stated != digest(record):
            raise ValueError("its content_digest is of other content: it was edited")
    except (OSError, ValueError, KeyError) as error:
        raise GateError(
            str(path), got=f"no usable record ({error})", expected="a record as written by measure", fix=MEASURE_AGAIN
        ) from error
    return record
