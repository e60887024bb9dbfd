"""The JUnit file is well-formed XML whose counts are right, whatever a record says."""

from xml.etree import ElementTree

from hand_gates import FAILED, IDS, PASSED, REFUSED, SHIPPED, gate

from molmo2_iree.parity.report import Line
from molmo2_iree.parity.report_junit import junit

COUNTS = ("tests", "failures", "errors", "skipped")


def test_a_suite_for_each_gate_and_a_case_for_each_stage() -> None:
    root = ElementTree.fromstring(junit([PASSED, FAILED, SHIPPED, REFUSED]))
    assert [root.get(name) for name in COUNTS] == ["11", "2", "1", "3"]
    assert {suite.get("name"): [suite.get(name) for name in COUNTS] for suite in root} == {
        "cpu specification-photo": ["3", "0", "0", "0"],
        "cpu native-photo": ["4", "2", "0", "0"],
        "cpu mlx-shipped-photo (decides nothing)": ["3", "0", "0", "3"],
        "cpu native-text": ["1", "0", "1", "0"],
    }
    cases = [case.attrib for case in root.iter("testcase")]
    assert cases[1] == {"classname": "cpu.specification-photo", "name": "vision.block.0", "time": "0"}
    assert (
        root.findtext("testsuite/testcase/system-out") == "worst element 0.2 of its allowance, RMS 0.1 of its ceiling"
    )
    stated = root.findall("testsuite[1]/properties/property")
    assert {one.get("name"): one.get("value") for one in stated}["measured_with.iree"] == "3.13.0"


def test_a_failure_is_the_divergence_in_three_lines() -> None:
    first = ElementTree.fromstring(junit([FAILED])).find("testsuite/testcase/failure")
    assert first is not None
    assert first.get("message") == "at [0, 3]: got 1.0, expected 2.0, allowed 1e-05 (4 times its allowance)"
    assert str(first.text).splitlines() == [
        "gate native-photo on cpu: first divergent stage vision.block.1, 2 of 4 stages fail",
        "  at [0, 3]: got 1.0, expected 2.0, allowed 1e-05 (4 times its allowance)",
        "  evidence: records/native-photo.json",
    ]


def test_what_decides_nothing_is_skipped_with_what_was_seen() -> None:
    skipped = ElementTree.fromstring(junit([SHIPPED])).findall("testsuite/testcase/skipped")
    assert [one.get("message") for one in skipped] == [
        "decides nothing; agrees",
        "decides nothing; agrees",
        "decides nothing; differs at [0, 3]: got 1.0, expected 2.0, allowed 1e-05",
    ]


def test_a_gate_without_a_verdict_is_an_error() -> None:
    error = ElementTree.fromstring(junit([REFUSED])).find("testsuite/testcase/error")
    assert error is not None
    assert "not measured" in str(error.get("message"))


def test_hostile_text_is_escaped() -> None:
    hostile = '<![CDATA[\x00\x1b]]>&"\ud800\uffff'
    root = ElementTree.fromstring(junit([gate("native-text", IDS, Line(hostile, False, why=hostile))]).encode("utf-8"))
    case = root.findall("testsuite/testcase")[1]
    assert case.get("name") == '<![CDATA[��]]>&"��'


def test_no_gates() -> None:
    assert ElementTree.fromstring(junit([])).get("tests") == "0"
