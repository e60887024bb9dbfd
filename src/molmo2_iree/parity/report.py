"""What the gates of a target found, gathered for people: every record judged again here, so failures are shown too.

A verdict is written only where a gate passed; a record is written always. ``report_page``, ``report_junit`` and the
terminal table show the same gathered facts.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from molmo2_iree.build.plan import Plan
from molmo2_iree.config import Tolerance
from molmo2_iree.errors import GateError, MolmoError
from molmo2_iree.files import write_whole
from molmo2_iree.parity.expected import INFORMATIONAL, check_environment, expected_environment
from molmo2_iree.parity.judge import judge, read_record, tolerance_key
from molmo2_iree.parity.reference import read_reference, split_gate

PAGE, JUNIT, DIVERGENCE = "gates.html", "gates.xml", "divergence.txt"
SHOWN = 300
"""Letters of a value that came from a record, at most."""


@dataclass(frozen=True)
class Line:
    """One comparison, judged. ``error`` and ``allowed`` are of the element closest to, or furthest over, its limit."""

    stage: str
    passed: bool
    exact: bool = False
    error: float | None = None
    allowed: float | None = None
    margin: float | None = None
    rms: float | None = None
    rms_allowed: float | None = None
    rms_margin: float | None = None
    index: tuple[int, ...] | None = None
    why: str = ""

    @property
    def key(self) -> str:
        """The stage without the number of a block or layer, as tolerances name it."""
        return tolerance_key(self.stage)

    @property
    def closest(self) -> float | None:
        """The larger share of an allowance used, of the worst element or of the RMS; over 1 fails."""
        return None if self.margin is None else max(self.margin, self.rms_margin or 0.0)


@dataclass(frozen=True)
class Gap:
    """Where greedy decoding was least sure: the smallest distance of the two largest logits, and at which token."""

    distance: float
    step: int
    steps: int
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Gate:
    """One gate of a target. ``refused`` says why there is no judgement; then there are no lines."""

    name: str
    reference: str
    case: str
    target: str
    record: Path
    lines: tuple[Line, ...] = ()
    refused: str = ""
    prompt: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    measured_with: Mapping[str, Any] = field(default_factory=dict)
    gap: Gap | None = None

    @property
    def informational(self) -> bool:
        """Whether it decides nothing."""
        return self.reference in INFORMATIONAL

    @property
    def failed(self) -> list[Line]:
        """Lines that do not hold, in the order of the line."""
        return [line for line in self.lines if not line.passed]

    @property
    def state(self) -> str:
        """``passed``, ``failed`` or ``no verdict``; ``agrees`` or ``differs`` where it decides nothing."""
        if self.refused:
            return "no verdict"
        if self.informational:
            return "differs" if self.failed else "agrees"
        return "failed" if self.failed else "passed"

    @property
    def bad(self) -> bool:
        """Whether the build fails for it."""
        return bool(self.refused) or (bool(self.failed) and not self.informational)

    @property
    def closest(self) -> Line | None:
        """The line that uses the largest share of its allowance."""
        return max((line for line in self.lines if line.closest is not None), key=_share, default=None)


@dataclass(frozen=True)
class Report:
    """Every gate of a target, in the order of the configuration. ``mutants`` is None where they were not run."""

    plan: Plan
    target: str
    gates: tuple[Gate, ...]
    mutants: Mapping[str, Any] | None

    @property
    def deciding(self) -> list[Gate]:
        """Gates that decide."""
        return [gate for gate in self.gates if not gate.informational]

    @property
    def informational(self) -> list[Gate]:
        """Gates that are shown and decide nothing."""
        return [gate for gate in self.gates if gate.informational]

    @property
    def bad(self) -> list[Gate]:
        """Gates for which the build fails."""
        return [gate for gate in self.gates if gate.bad]


def _share(line: Line) -> float:
    return -1.0 if line.closest is None else line.closest


def gather(plan: Plan, target: str) -> Report:
    """Read and judge every record of a target; what cannot be read is said, not raised."""
    gates = tuple(_gate(plan, target, name) for name in plan.gates)
    return Report(plan, target, gates, read_mutants(plan.mutants_path(target)))


def write_report(plan: Plan, target: str, folder: Path) -> Report:
    """Write ``gates.html``, ``gates.xml`` and ``divergence.txt``, the last one empty where every gate passed."""
    from molmo2_iree.parity.report_junit import junit
    from molmo2_iree.parity.report_page import page

    gathered = gather(plan, target)
    write_whole(folder / PAGE, page(gathered))
    write_whole(folder / JUNIT, junit(gathered.gates))
    write_whole(folder / DIVERGENCE, divergence(gathered.bad[:1]))
    return gathered


def divergence(gates: Sequence[Gate]) -> str:
    """Three lines for each gate: which and at what stage, the worst element, where the evidence is."""
    return "".join(f"{line}\n" for gate in gates for line in three_lines(gate))


def three_lines(gate: Gate, line: Line | None = None) -> list[str]:
    """The divergence of a gate at ``line``, or at its first line that does not hold."""
    where = f"gate {gate.name} on {gate.target}"
    if gate.refused:
        return [f"{where}: no verdict", f"  {_flat(gate.refused)}", f"  evidence: {gate.record}"]
    failed = gate.failed
    first = line or failed[0]
    nth = "first divergent stage" if first is failed[0] else "divergent stage"
    head = f"{where}: {nth} {first.stage}, {len(failed)} of {len(gate.lines)} stages fail"
    factor = first.margin if (first.margin or 0.0) > 1 else first.rms_margin
    over = f" ({factor:.3g} times its allowance)" if factor is not None else ""
    return [head, f"  {_flat(first.why)}{over}", f"  evidence: {gate.record}"]


def _flat(text: str) -> str:
    return " ".join(text.split())[:SHOWN]


def _gate(plan: Plan, target: str, name: str) -> Gate:
    reference, case = split_gate(name)
    path = plan.record_path(target, name)
    known: dict[str, Any] = {"reference": reference, "case": case.name, "target": target, "record": path}
    if not path.is_file():
        return Gate(name, **known, refused="not measured: run snakemake gates")
    try:
        record = read_record(path)
        known |= {"environment": dict(record["reference"]), "measured_with": dict(record["measured_with"])}
        expected = expected_environment(plan, reference)
        check_environment(name, record["reference"], expected)
        lines = judged(record, plan.limits, expected["covers"])
        ids = next(entry for entry in record["comparisons"] if entry["stage"] == "input.ids")
        gap = smallest_gap(plan.reference_path(name))
        return Gate(name, **known, lines=lines, prompt=ids["shape"][0], gap=gap)
    except MolmoError as error:
        return Gate(name, **known, refused=str(error))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        return Gate(name, **known, refused=f"no usable record ({error!r}): delete it and run snakemake gates")


def judged(record: Mapping[str, Any], limits: Mapping[str, Tolerance], covers: Sequence[str]) -> tuple[Line, ...]:
    """The lines of a record, by the same ``judge`` that decides."""
    return tuple(_line(verdict, limits) for verdict in judge(record, limits, covers))


def _line(verdict: Mapping[str, Any], limits: Mapping[str, Tolerance]) -> Line:
    known: dict[str, Any] = {"exact": verdict["kind"] == "exact", "why": verdict.get("why", "")}
    if "margin" in verdict:
        allowed, worst = limits[tolerance_key(verdict["stage"])], verdict["worst"]
        known |= {"rms_allowed": allowed.rms, **{name: verdict[name] for name in ("margin", "rms", "rms_margin")}}
        if worst:
            known["error"] = abs(worst["got"] - worst["expected"])
            known["allowed"] = allowed.atol + allowed.rtol * abs(worst["expected"])
            known["index"] = tuple(worst["index"])
    return Line(verdict["stage"], verdict["passed"], **known)


def smallest_gap(path: Path) -> Gap | None:
    """The smallest top-1 to top-2 distance along a reference's greedy path; None where it has none."""
    try:
        arrays, _ = read_reference(path)
    except GateError:
        return None  # a reference is rebuilt at any time; its record speaks without it
    logits = arrays.get("greedy.logits")
    return None if logits is None or logits.shape[-1] < 2 else gap_of(logits)


def gap_of(logits: np.ndarray) -> Gap:
    """Of [steps, vocabulary]: [[1, 4, 2], [5, 0, 4.5]] gives distance 0.5 at step 1 between tokens 0 and 2."""
    order = np.argsort(logits, -1)[:, -2:]
    top = np.take_along_axis(logits, order, -1)
    distances = top[:, 1] - top[:, 0]
    step = int(np.argmin(distances))
    return Gap(float(distances[step]), step, len(logits), (int(order[step, 1]), int(order[step, 0])))


def stage_order(gates: Iterable[Gate]) -> list[str]:
    """Every stage once, in the order of the line, though some gates leave some out.

    Gates with stages (a, c) and (a, b, c, d) give a, b, c, d.
    """
    order: list[str] = []
    for gate in sorted(gates, key=lambda gate: -len(gate.lines)):
        at = 0
        for line in gate.lines:
            if line.stage in order:
                at = order.index(line.stage) + 1
            else:
                order.insert(at, line.stage)
                at += 1
    return order


def worst_by_key(gates: Sequence[Gate]) -> dict[str, tuple[Gate, Line]]:
    """For each tolerance the gate and line closest to it, in the order of the line."""
    keys = dict.fromkeys(tolerance_key(stage) for stage in stage_order(gates))
    found: dict[str, tuple[Gate, Line]] = {}
    for gate in gates:
        for line in gate.lines:
            if line.closest is not None and (line.key not in found or _share(line) > _share(found[line.key][1])):
                found[line.key] = (gate, line)
    return {key: found[key] for key in keys if key in found}


def read_mutants(path: Path) -> Mapping[str, Any] | None:
    """Outcomes as ``molmo2 mutants`` writes them; None where it was not run for these records."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        [outcome["name"] for outcome in content["outcomes"]]
    except (ValueError, KeyError, TypeError) as error:
        fix = f"delete {path} and run molmo2 mutants"
        raise GateError(str(path), got=repr(error), expected="outcomes of wrong models", fix=fix) from error
    return content
