"""The page is one well-formed file that fetches nothing, and text from records is never markup."""

import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hand_gates import FAILED, PASSED, REFUSED, SHIPPED

from molmo2_iree.build.plan import Plan
from molmo2_iree.parity.differences import KNOWN_DIFFERENCES
from molmo2_iree.parity.report import Gate, Report
from molmo2_iree.parity.report_page import page

VOID = {"meta", "img", "br", "hr", "link", "input", "line", "circle", "path"}


class Outline(HTMLParser):
    """Checks that tags nest; keeps the words, the headings' ids and every link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        if named.get("id"):
            self.ids.append(str(named["id"]))
        self.links += [str(named[name]) for name in ("href", "src") if name in named]
        if tag not in VOID or tag in ("circle", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def shown(plan: Plan, *gates: Gate, mutants: Mapping[str, Any] | None = None) -> tuple[str, Outline]:
    text = page(Report(plan, "cpu", gates, mutants))
    return text, Outline(text)


@pytest.mark.parametrize("gates", [(PASSED, SHIPPED), (PASSED, FAILED, SHIPPED, REFUSED), (REFUSED,), ()])
def test_the_page_stands_alone(plan: Plan, gates: tuple[Gate, ...]) -> None:
    text, outline = shown(plan, *gates)
    assert all(link.startswith(("#", "data:image/jpeg;base64,")) for link in outline.links)
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    assert not outline.tags & {"script", "link", "iframe", "object"}
    assert not re.search(r"@import|url\(|javascript:|\son\w+=", text)
    assert "prefers-color-scheme: dark" in text


def test_what_passed_and_what_decides_nothing_are_apart(plan: Plan) -> None:
    text, _ = shown(plan, PASSED, SHIPPED)
    assert "<title>Gates of cpu: passed</title>" in text
    deciding, _, rest = text.partition('<h2 id="informational">')
    assert 'href="#gate-mlx-shipped-photo"' not in deciding
    assert 'href="#gate-mlx-shipped-photo"' in rest
    assert "differs" in rest


def test_a_failure_is_at_the_top(plan: Plan) -> None:
    text, outline = shown(plan, PASSED, FAILED)
    assert "<title>Gates of cpu: failed</title>" in text
    head = text.partition("<nav>")[0]
    assert "first divergent stage vision.block.1, 2 of 4 stages fail" in head
    assert "1 of 2 gates do not hold" in "".join(outline.words)


def test_every_tolerance_and_known_difference_is_there(plan: Plan) -> None:
    words = "".join(shown(plan, PASSED)[1].words)
    assert all(limit.reason in words for limit in plan.limits.values())
    assert all(difference.here in words for difference in KNOWN_DIFFERENCES)
    assert all(f"in slot {slot}" in words for slot in (0, 1, 2))


def test_the_confidence_of_the_greedy_tokens(plan: Plan) -> None:
    words = re.sub(r"\s+", " ", " ".join(shown(plan, PASSED)[1].words))
    assert "specification-photo 0.5 token 4 of 8 1 and 2 0.01 25" in words


def test_wrong_models(plan: Plan) -> None:
    outcome = {"name": "exact GELU", "case": "photo", "first": "vision.block.0", "factor": 43.2, "why": "at [0]"}
    survivor = outcome | {"name": "another", "caught": None, "factor": None}
    _text, outline = shown(plan, PASSED, mutants={"outcomes": [outcome | {"caught": "vision.block.0"}, survivor]})
    words = re.sub(r"\s+", " ", " ".join(outline.words))
    assert "exact GELU photo vision.block.0 43.2" in words
    assert "another photo survived named: vision.block.0" in words
    assert "Not run for these records" in "".join(shown(plan, PASSED)[1].words)


def test_text_from_records_is_never_markup(plan: Plan) -> None:
    hostile = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\" ' {{ 7 * 7 }}"
    line = replace(FAILED.lines[2], why=hostile, stage=f"vision.block.{hostile}")
    gates = [
        replace(FAILED, lines=(line,), environment={hostile: hostile}, measured_with={"iree": hostile}),
        replace(REFUSED, refused=hostile),
    ]
    keys = ("name", "case", "first", "caught", "why")
    mutants = {"outcomes": [dict.fromkeys(keys, hostile) | {"factor": 1.0}]}
    report = Report(plan, "cpu", tuple(gates), mutants)
    limits = plan.limits | {line.key: next(iter(plan.limits.values()))}
    storage = plan.config.weights.storage
    wider = replace(plan, config=plan.config.model_copy(update={"tolerances": {storage: limits}}))
    text = page(replace(report, plan=wider))
    outline = Outline(text)
    assert "script" not in outline.tags
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", text)
    assert "x" not in outline.links
    assert "{{ 7 * 7 }}" in "".join(outline.words)
