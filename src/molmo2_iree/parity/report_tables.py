"""Rows and curves of the gate page and of the terminal, as plain text and numbers."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from molmo2_iree.config import Reference
from molmo2_iree.parity.judge import tolerance_key
from molmo2_iree.parity.report import Gate, Line, Report, stage_order
from molmo2_iree.parity.report_curves import SHAPES, Curve, chart

HEADS = ("gate", "verdict", "stages", "hold", "closest to its limit", "first divergence")
NOTHING = "–"


@dataclass(frozen=True)
class Figure:
    """A chart with its title."""

    title: str
    svg: str


def number(value: float | None) -> str:
    """Three digits: 0.00012345 is "0.000123", None a dash, an infinity its sign."""
    if value is None:
        return NOTHING
    return ("∞" if value == math.inf else "NaN") if not math.isfinite(value) else f"{value:.3g}"


def verdict(gate: Gate) -> str:
    """The state of a gate in words."""
    return f"{gate.state}, decides nothing" if gate.informational else gate.state


def rows(gates: Iterable[Gate]) -> list[tuple[str, ...]]:
    """A row for each gate under ``HEADS``."""
    found = []
    for gate in gates:
        closest, failed = gate.closest, gate.failed
        first = f"{failed[0].stage}: {failed[0].why}" if failed else gate.refused
        near = f"{closest.stage} {number(closest.closest)}" if closest else NOTHING
        held = str(len(gate.lines) - len(failed))
        found.append((gate.name, verdict(gate), str(len(gate.lines)), held, near, first or NOTHING))
    return found


def margin_figures(gates: Sequence[Gate], cases: Sequence[str]) -> list[Figure]:
    """Share of the allowance used at every stage: by the worst element, and by the RMS."""
    stages = stage_order(gates)
    keys = list(dict.fromkeys(tolerance_key(stage) for stage in stages))
    keys = [key for key in keys if any(line.key == key and not line.exact for gate in gates for line in gate.lines)]
    figures = []
    for title, field in (("Worst element", "margin"), ("RMS", "rms_margin")):
        curves = []
        for gate in gates:
            values = [_largest(gate, key, field) for key in keys]
            curves.append(_curve(gate, cases, values, values))
        spoken = f"{title}: share of the allowance used at every stage"
        figures.append(Figure(title, chart(keys, curves, [1.0] * len(keys), spoken)))
    return figures if keys else []


def layer_figures(gates: Sequence[Gate], cases: Sequence[str]) -> list[Figure]:
    """For each stage that has layers: the worst difference and the RMS of every layer, in the stage's own numbers."""
    figures = []
    for family, layers in families(stage_order(gates), gates).items():
        lines = {gate.name: {line.stage: line for line in gate.lines} for gate in gates}
        for title, value, limit, margin in (
            (f"{family}, worst difference", "error", "allowed", "margin"),
            (f"{family}, RMS of the difference", "rms", "rms_allowed", "rms_margin"),
        ):
            curves, limits = [], []
            for gate in gates:
                found = [lines[gate.name].get(f"{family}.{layer}") for layer in layers]
                curves.append(
                    _curve(gate, cases, [_value(f, value) for f in found], [_value(f, margin) for f in found])
                )
            for layer in layers:
                allowed = [_value(lines[gate.name].get(f"{family}.{layer}"), limit) for gate in gates]
                limits.append(min((one for one in allowed if one is not None), default=None))
            figures.append(Figure(title, chart([str(n) for n in layers], curves, limits, title)))
    return figures


def families(stages: Sequence[str], gates: Sequence[Gate]) -> dict[str, list[int]]:
    """Stages with numbers, and the numbers: {"vision.block": [0, 1, 2]}. Exact comparisons have no curve."""
    close = {line.stage for gate in gates for line in gate.lines if not line.exact}
    found: dict[str, list[int]] = {}
    for stage in stages:
        head, _, tail = stage.rpartition(".")
        if tail.isdigit() and stage in close:
            found.setdefault(head, []).append(int(tail))
    return {head: sorted(numbers) for head, numbers in found.items()}


def _curve(gate: Gate, cases: Sequence[str], values: Sequence[float | None], margins: Sequence[float | None]) -> Curve:
    over = frozenset(place for place, margin in enumerate(margins) if margin is not None and not margin <= 1)
    shape = cases.index(gate.case) if len(cases) <= len(SHAPES) else 0
    return Curve(gate.name, colour_of(gate.reference), shape, values, over)


def colour_of(reference: str) -> int:
    """The number of a reference's colour."""
    names = get_args(Reference)
    return names.index(reference) if reference in names else 0


def _largest(gate: Gate, key: str, field: str) -> float | None:
    values = [_value(line, field) for line in gate.lines if line.key == key]
    return max((value for value in values if value is not None), default=None)


def _value(line: Line | None, field: str) -> float | None:
    return None if line is None else getattr(line, field)


def closest_lines(gates: Iterable[Gate], most: int) -> list[tuple[Gate, Line]]:
    """The lines that use the largest share of their allowance, largest first."""
    found = [(gate, line) for gate in gates for line in gate.lines if line.closest is not None]
    return sorted(found, key=lambda pair: -(pair[1].closest or 0.0))[:most]


def environments(gates: Iterable[Gate]) -> list[tuple[str, dict[str, str]]]:
    """(reference, its environment as text); where its cases ran otherwise, "1 or 2"."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for gate in gates:
        for name, value in gate.environment.items():
            if name != "reference":
                found.setdefault(gate.reference, {}).setdefault(name, {})[_plain(value)] = None
    return [(name, {field: " or ".join(values) for field, values in stated.items()}) for name, stated in found.items()]


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return str(value)


def facts(report: Report) -> list[tuple[str, str]]:
    """What was built and measured, by name."""
    plan = report.plan
    chosen, lock = plan.target(report.target), plan.lock
    measured = {json.dumps(dict(gate.measured_with), sort_keys=True) for gate in report.gates if gate.measured_with}
    with_what = [" ".join(f"{name} {value}" for name, value in json.loads(text).items()) for text in sorted(measured)]
    return [
        ("checkpoint", f"{lock.name} at {lock.revision}"),
        ("mask of the image part", lock.mask_policy),
        ("weights", f"{plan.config.weights.storage}, {plan.weights_digest}"),
        ("cache", f"{plan.config.cache.slots} slots of {plan.config.cache.context} rows, {plan.config.cache.dtype}"),
        ("target", " ".join((chosen.triple, chosen.cpu, *chosen.flags))),
        ("built with", f"jax {plan.config.toolchain.jax}, iree {plan.config.toolchain.iree}"),
        ("measured with", "; ".join(with_what) or NOTHING),
        ("identity", plan.identity),
        ("bundle", plan.bundle_folder(report.target).name),
        ("records", str(plan.bundle_records(report.target))),
    ]
