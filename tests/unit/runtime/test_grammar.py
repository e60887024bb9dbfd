"""Grammars: what compiles, what is refused in words and how soon, and masks that lead to whole answers."""

import contextlib
import json
import random
import re
import time
from typing import Any

import numpy as np
import pytest

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.grammar import KEPT, Grammar, Grammars
from molmo2_iree.runtime.model import Model

SOON = 1.0
"""Seconds in which any grammar is compiled or refused."""


@pytest.fixture(scope="module")
def grammars(model: Model) -> Any:
    made = Grammars(model.processor.tokenizer, model.architecture)
    yield made
    made.close()


def walk(grammar: Grammar, model: Model, seed: int, most: int = 300) -> str:
    """A text made by choosing among what is allowed, at random."""
    chance, constraint, raw = random.Random(seed), grammar.start(), b""
    for _ in range(most):
        allowed = np.flatnonzero(constraint.allowed())
        token = int(chance.choice(allowed.tolist()))
        if token in model.architecture.tokens.stop:
            break
        raw += model.processor.tokenizer.token_bytes(token)
        constraint.take(token)
        if constraint.ended:
            break
    return raw.decode("utf-8", "strict")


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_are_whole(grammars: Grammars, model: Model, seed: int) -> None:
    schema = {"type": "array", "items": {"enum": [1, "two", None, True]}, "minItems": 1, "maxItems": 3}
    found = json.loads(walk(grammars.compile("json_schema", schema), model, seed))
    assert 1 <= len(found) <= 3
    assert all(item in (1, "two", None, True) for item in found)
    assert re.fullmatch("(ab|c){2,5}", walk(grammars.compile("regex", "(ab|c){2,5}"), model, seed))
    assert walk(grammars.compile("lark", 'start: "x" | "y" start'), model, seed).strip("y") in ("x", "")
    said = walk(grammars.compile("json_schema", {"type": "string", "maxLength": 5}), model, seed)
    assert len(json.loads(said)) <= 5


def test_masks(grammars: Grammars, model: Model) -> None:
    constraint = grammars.compile("regex", "ab?").start()
    text_of = model.processor.tokenizer.token_bytes
    assert constraint.allowed().shape == (model.architecture.text.vocabulary,)
    assert constraint.allowed().dtype == bool
    assert {text_of(int(k)) for k in np.flatnonzero(constraint.allowed())} <= {b"a", b"ab"}
    (a,) = model.processor.tokenizer.encode_text("a")
    constraint.take(a)
    assert not constraint.ended
    rest = set(np.flatnonzero(constraint.allowed()).tolist())
    assert rest == {*model.processor.tokenizer.encode_text("b"), *model.architecture.tokens.stop}
    constraint.take(min(rest))
    assert constraint.ended


def test_a_wrong_id_is_an_error(grammars: Grammars) -> None:
    constraint = grammars.compile("regex", "ab?").start()
    constraint.allowed()
    with pytest.raises(RequestError, match="grammar, a step"):
        constraint.take(300)


def test_one_grammar_many_answers(grammars: Grammars, model: Model) -> None:
    grammar = grammars.compile("regex", "[ab]{8}")
    first, second = grammar.start(), grammar.start()
    (a,) = model.processor.tokenizer.encode_text("a")
    first.take(a)
    second.allowed()
    np.testing.assert_array_equal(second.allowed(), grammar.start().allowed())


def test_when_ready_calls_once(grammars: Grammars) -> None:
    constraint = grammars.compile("json_object").start()
    called: list[int] = []
    constraint.allowed()
    constraint.when_ready(lambda: called.append(1))
    assert called == [1]
    assert constraint.ready


def test_the_same_text_is_compiled_once(grammars: Grammars) -> None:
    first = grammars.compile("regex", "same")
    assert grammars.compile("regex", "same") is first
    assert grammars.compile("lark", 'start: "same"') is not first
    for k in range(KEPT):
        grammars.compile("regex", f"other {k}")
    assert grammars.compile("regex", "same") is not first
    assert grammars.compile("json_schema", {"type": "null"}) is grammars.compile("json_schema", '{"type": "null"}')


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def many_objects(count: int) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(j)}} for j in range(count)
        ]
    }


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "a kind": ("yaml", "a", "grammar kind: got 'yaml', expected json_object or json_schema or regex or lark"),
    "no json": ("json_schema", "{", "json_schema: got no JSON"),
    "a number": ("json_schema", "3", "a schema is an object, or true"),
    "false": ("json_schema", False, "a schema is an object, or true"),
    "not a number": ("json_schema", {"const": float("nan")}, "json_schema: got no JSON"),
    "an object of Python": ("json_schema", {"a": object()}, "json_schema: got no JSON"),
    "an unknown type": ("json_schema", {"type": "strange"}, "Invalid type: strange"),
    "an unknown keyword": ("json_schema", {"not": {"type": "string"}}, "Unimplemented keys"),
    "a remote reference": ("json_schema", {"$ref": "http://example.com/x"}, "not present in a registry"),
    "itself": ("json_schema", {"$ref": "#"}, "grammar, json_schema: got"),
    "look-behind": ("json_schema", {"type": "string", "pattern": "(?<=a)b"}, "grammar, json_schema: got"),
    "deep": ("json_schema", nested(900), "recursion limit exceeded"),
    "deeper than Python goes": ("json_schema", nested(20_000), "json_schema: got no JSON"),
    "many objects": ("json_schema", many_objects(300), "json_schema: got .* characters, expected 1 to 65536"),
    "a large text": ("regex", "a" * 65_537, "regex: got 65537 characters, expected 1 to 65536"),
    "nothing": ("regex", "", "regex: got 0 characters"),
    "an open group": ("regex", "(", "grammar, regex: got"),
    "parentheses": ("regex", "(" * 30_000 + "a" + ")" * 30_000, "grammar, regex: got"),
    "an unknown rule": ("lark", "start: x", 'unknown name: "x"'),
    "no grammar": ("lark", "}{", "grammar, lark: got"),
    "nested rules": ("lark", "start: " + "(" * 9000 + '"a"' + ")" * 9000, "too deeply nested"),
    "a special token": ("lark", 'start: <|im_end|> "x"', "grammar, lark: got"),
    "costly intersections": (
        "lark",
        "start: T\nT: " + " & ".join(f"/(.*a.{{{k}}}b.*)/" for k in range(1, 12)),
        "fuel exhausted",
    ),
    "a lone surrogate": ("regex", "\ud800", "lone surrogate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(grammars: Grammars, name: str) -> None:
    kind, source, words = REFUSED[name]
    began = time.monotonic()
    with pytest.raises(RequestError, match=words) as refusal:
        grammars.compile(kind, source)
    assert time.monotonic() - began < SOON
    assert len(str(refusal.value)) < 700
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", many_objects(60)),
        ("json_schema", {"enum": [f"value {k}" for k in range(4000)]}),
        ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
        ("json_schema", {"type": "string", "pattern": "^(a{1000}){1000}$"}),
        ("json_schema", True),
        ("regex", "((a|b)*a(a|b){200})"),
        ("lark", "start: " + '"a"? ' * 3000),
        ("lark", 'start: start start | start start start | "a" | ""'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_large_ones_compile_soon_or_are_refused(grammars: Grammars, kind: Any, source: Any) -> None:
    began = time.monotonic()
    with contextlib.suppress(RequestError):
        grammars.compile(kind, source).start().allowed()
    assert time.monotonic() - began < SOON
