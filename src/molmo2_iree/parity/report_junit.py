"""The gates as JUnit XML: a suite for each gate, a case for each stage.

What CI systems make of it: a stage over its allowance is a failure with the three lines of its divergence; a gate
without a verdict is an error; stages of a reference that decides nothing are skipped, with what was seen as the reason.
"""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from molmo2_iree.parity.report import Gate, Line, three_lines

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NO_RECORD = "record"
"""Name of the one case of a gate that has no judgement."""


def junit(gates: Sequence[Gate]) -> str:
    """The text of the file."""
    suites = [_suite(gate) for gate in gates]
    root = ElementTree.Element("testsuites", {"name": "molmo2 gates", **_counts(suites)})
    root.extend(suites)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def clean(text: object) -> str:
    """Text without the characters XML cannot hold: a NUL becomes U+FFFD."""
    return NOT_XML.sub("�", str(text))


def _counts(suites: Sequence[ElementTree.Element]) -> dict[str, str]:
    names = ("tests", "failures", "errors", "skipped")
    return {name: str(sum(int(suite.get(name, "0")) for suite in suites)) for name in names} | {"time": "0"}


def _suite(gate: Gate) -> ElementTree.Element:
    cases = [_case(gate, line) for line in gate.lines] or [_refused(gate)]
    note = " (decides nothing)" if gate.informational else ""
    suite = ElementTree.Element("testsuite", {"name": clean(f"{gate.target} {gate.name}{note}")})
    counted = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}
    counted["skipped"] = "testcase/skipped"
    properties = {**gate.environment, **{f"measured_with.{k}": v for k, v in gate.measured_with.items()}}
    if properties:
        listed = ElementTree.SubElement(suite, "properties")
        for name, value in properties.items():
            ElementTree.SubElement(listed, "property", {"name": clean(name), "value": clean(value)})
    suite.extend(cases)
    for name, path in counted.items():
        suite.set(name, str(len(suite.findall(path))))
    suite.set("time", "0")
    return suite


def _element(gate: Gate, name: str) -> ElementTree.Element:
    return ElementTree.Element(
        "testcase", {"classname": clean(f"{gate.target}.{gate.name}"), "name": clean(name), "time": "0"}
    )


def _case(gate: Gate, line: Line) -> ElementTree.Element:
    case = _element(gate, line.stage)
    if gate.informational:
        seen = "agrees" if line.passed else f"differs {line.why}"
        ElementTree.SubElement(case, "skipped", {"message": clean(f"decides nothing; {seen}")})
    elif not line.passed:
        said = three_lines(gate, line)
        failure = ElementTree.SubElement(case, "failure", {"message": clean(said[1].strip()), "type": "divergence"})
        failure.text = clean("\n".join(said))
    elif line.margin is not None:
        out = ElementTree.SubElement(case, "system-out")
        out.text = f"worst element {line.margin:.3g} of its allowance, RMS {line.rms_margin:.3g} of its ceiling"
    return case


def _refused(gate: Gate) -> ElementTree.Element:
    case = _element(gate, NO_RECORD)
    error = ElementTree.SubElement(case, "error", {"message": clean(gate.refused), "type": "no verdict"})
    error.text = clean("\n".join(three_lines(gate)))
    return case
