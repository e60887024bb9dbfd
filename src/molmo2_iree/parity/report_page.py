"""The gate page: one HTML file that needs nothing else, no script, in the reader's light or dark colours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from molmo2_iree.parity.cases import CASES, Picture
from molmo2_iree.parity.differences import KNOWN_DIFFERENCES
from molmo2_iree.parity.mutate import chosen, family_of
from molmo2_iree.parity.report import Gate, Report, three_lines, worst_by_key
from molmo2_iree.parity.report_curves import SHAPES, mark
from molmo2_iree.parity.report_pictures import Drawn, draw
from molmo2_iree.parity.report_tables import (
    Figure,
    closest_lines,
    colour_of,
    environments,
    facts,
    layer_figures,
    margin_figures,
    number,
    rows,
    verdict,
)

TEMPLATE = Path(__file__).with_name("report_page.html.jinja")
MOST_MARGINS = 25
STYLES = {"passed": "good", "agrees": "plain", "differs": "plain", "failed": "bad", "no verdict": "bad"}


def page(report: Report) -> str:
    """The text of the page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "share": share, "verdict": verdict}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(**_context(report)) + "\n"


def share(value: float | None) -> str:
    """How far a bar reaches, in percent of its room: the whole of it at the allowance and beyond."""
    return f"{100 * min(max(value or 0.0, 0.0), 1.0):.0f}"


def _context(report: Report) -> dict[str, Any]:
    plan = report.plan
    cases = list(plan.config.gates.cases)
    return {
        "target": report.target,
        "facts": facts(report),
        "deciding": report.deciding,
        "informational": report.informational,
        "bad": report.bad,
        "first": three_lines(report.bad[0]) if report.bad else None,
        "gate_rows": dict(zip((gate.name for gate in report.gates), rows(report.gates), strict=True)),
        "styles": STYLES,
        "closest": next((line for _, line in closest_lines(report.deciding, 1)), None),
        "margins": closest_lines(report.deciding, MOST_MARGINS),
        "stages": _stages(report),
        "legend": _legend(report, report.deciding),
        "other_legend": _legend(report, report.informational),
        "curves": _figures(margin_figures(report.deciding, cases)),
        "layers": _figures(layer_figures(report.deciding, cases)),
        "other_curves": _figures(margin_figures(report.informational, cases)),
        "gaps": [_gap(gate) for gate in report.deciding if gate.gap],
        "cases": [_case(report, name) for name in cases],
        "pictures": _pictures(report, cases),
        "mutants": report.mutants,
        "catalogue": len(chosen([], family_of(report.plan))),
        "environments": environments(report.gates),
        "fields": _fields(report),
        "differences": KNOWN_DIFFERENCES,
    }


def _figures(figures: list[Figure]) -> list[tuple[str, Markup]]:
    """With the SVG marked as markup: ``chart`` escapes what it was given."""
    return [(figure.title, Markup(figure.svg)) for figure in figures]


def _stages(report: Report) -> list[dict[str, Any]]:
    """Every tolerance with its reason and the gate that came closest to it; in the order of the line where measured."""
    worst = worst_by_key(report.deciding)
    order = [*worst, *(key for key in report.plan.limits if key not in worst)]
    found = []
    for key in order:
        gate, line = worst.get(key, (None, None))
        found.append({"key": key, "limit": report.plan.limits[key], "gate": gate, "line": line})
    return found


def _legend(report: Report, gates: list[Gate]) -> list[tuple[Markup, str]]:
    """Marks and their words: a colour for each reference, a shape for each case."""

    def drawn(colour: int | None, shape: int) -> Markup:
        style = "plain" if colour is None else f"c{colour}"
        return Markup(f'<svg class="key" viewBox="0 0 14 14"><g class="{style}">{mark(shape, 7, 7)}</g></svg>')

    references = dict.fromkeys(gate.reference for gate in gates)
    cases = [name for name in report.plan.config.gates.cases if any(gate.case == name for gate in gates)]
    colours = [(drawn(colour_of(name), 0), name) for name in references]
    if len(report.plan.config.gates.cases) > len(SHAPES):
        return [*colours, (Markup(""), "a curve for each case")]
    return colours + [(drawn(None, list(report.plan.config.gates.cases).index(name)), name) for name in cases]


def _gap(gate: Gate) -> dict[str, Any]:
    """The gap, the worst difference of any decode logit, and how many such differences it takes to close the gap."""
    worst = next((line.error for line in gate.lines if line.stage == "decode.logits"), None)
    gap = gate.gap
    return {"gate": gate, "gap": gap, "worst": worst, "times": gap.distance / (2 * worst) if gap and worst else None}


def _case(report: Report, name: str) -> dict[str, Any]:
    case = CASES[name]
    prompt = next((gate.prompt for gate in report.gates if gate.case == name and gate.prompt), None)
    turns = (case.question + ("…" if case.fills else ""), *(case.followup or ()))
    return {"name": name, "turns": turns, "slot": case.slot, "prompt": prompt, "pictures": case.pictures}


def _pictures(report: Report, cases: Sequence[str]) -> dict[Picture, tuple[str, Drawn]]:
    """Each picture of the cases once, with the first case that shows it."""
    look = report.plan.lock.architecture.processor
    found: dict[Picture, tuple[str, Drawn]] = {}
    for name in cases:
        case = CASES[name]
        for picture, pixels in zip(
            case.pictures, case.open(look.image_size, look.patch_size, look.overlap_margins), strict=True
        ):
            if picture not in found:
                found[picture] = name, draw(picture.photograph, pixels, look)
    return found


def _fields(report: Report) -> list[str]:
    """Every field that some reference's environment states."""
    stated = [environment for _, environment in environments(report.gates)]
    return sorted({name for environment in stated for name in environment})
