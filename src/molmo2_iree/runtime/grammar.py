"""Answers that follow a grammar: JSON, a JSON schema, a regular expression or a Lark grammar, through llguidance.

A grammar is compiled where the request is made, never on the engine's thread; the mask of each next id is computed by
a worker while the device runs the step that needs it. V is the vocabulary.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from molmo2_iree.architecture import Architecture
from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.tokenizer import Tokenizer, check_text

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Kind = Literal["json_object", "json_schema", "regex", "lark"]
KINDS: tuple[Kind, ...] = ("json_object", "json_schema", "regex", "lark")

MOST_CHARACTERS = 65_536
"""Of a grammar's text; what is larger takes seconds a token."""
KEPT = 32
"""Compiled grammars that are kept for the next request with the same text."""

JSON_SPACE = r"\n[ \t]{0,40}| ?"
"""White space between the parts of JSON: at most one line's break and indent, or one space, so none runs on."""

LIMITS = {
    "max_items_in_row": 500,
    "initial_lexer_fuel": 150_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
"""What a grammar may cost; llguidance refuses one that needs more, while compiling or at the step that does."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A compiled grammar, made by :class:`Grammars`; any number of answers may follow it."""

    kind: Kind
    _matcher: "LLMatcher"
    _pool: ThreadPoolExecutor
    _vocabulary: int

    def start(self) -> "Constraint":
        """A constraint at its beginning, its first mask under way."""
        return Constraint(self._matcher.deep_copy(), self._pool, self._vocabulary)


class Constraint:
    """One answer's way through a grammar. The matcher is the worker's until the mask is there."""

    def __init__(self, matcher: "LLMatcher", pool: ThreadPoolExecutor, vocabulary: int) -> None:
        self._matcher, self._pool, self._vocabulary = matcher, pool, vocabulary
        self.ended = matcher.is_stopped()
        """Whether nothing may follow any more."""
        self._mask: Future[np.ndarray] = pool.submit(self._compute)

    @property
    def ready(self) -> bool:
        """Whether :meth:`allowed` will not wait."""
        return self._mask.done()

    def when_ready(self, call: Callable[[], Any]) -> None:
        """Call ``call`` once, on a worker or at once, when the mask is there."""
        self._mask.add_done_callback(lambda _: call())

    def allowed(self) -> np.ndarray:
        """bool [V]: ids that may come next. RequestError if the grammar turned out too complex."""
        return self._mask.result()

    def take(self, token: int) -> None:
        """Go on by an id that was allowed; the next mask gets under way. Waits for the present one, if it must."""
        self._mask.exception()  # a matcher that computes cannot go on
        if not self._matcher.consume_token(token):
            raise _refused("a step", self._matcher.get_error())
        self.ended = self._matcher.is_stopped()
        if not self.ended:
            self._mask = self._pool.submit(self._compute)

    def _compute(self) -> np.ndarray:
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise _refused("a step", self._matcher.get_error())
        return np.unpackbits(packed, bitorder="little")[: self._vocabulary].astype(bool)


class Grammars:
    """Compiles grammars for one tokenizer. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, architecture: Architecture, workers: int = 2) -> None:
        self._tokenizer, self._architecture = tokenizer, architecture
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._library: LLTokenizer | None = None
        self._kept: OrderedDict[tuple[Kind, str], Grammar] = OrderedDict()

    def compile(self, kind: Kind, text: str | Mapping[str, Any] | bool = "") -> Grammar:
        """A grammar of its kind and text; a schema may be given as parsed JSON, json_object needs no text.

        RequestError for what is no grammar, asks for what llguidance does not do, or would take too long.
        It takes milliseconds, at worst a few hundred: call it on a thread that may wait.
        """
        if kind not in KINDS:
            raise RequestError("grammar kind", got=repr(kind)[:80], expected=" or ".join(KINDS), fix="name one of them")
        source = _source(kind, text)
        with self._lock:
            found = self._kept.get((kind, source))
            if self._library is None:
                self._library = _tokenizer(self._tokenizer, self._architecture)
        grammar = found or self._compiled(kind, source, self._library)
        with self._lock:
            self._kept[kind, source] = grammar
            self._kept.move_to_end((kind, source))
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return grammar

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(cancel_futures=True)

    def _compiled(self, kind: Kind, source: str, tokenizer: "LLTokenizer") -> Grammar:
        llguidance = _library()
        options: Any = {"whitespace_pattern": JSON_SPACE}
        try:
            if kind in ("json_object", "json_schema"):
                described = llguidance.LLMatcher.grammar_from_json_schema(source, overrides=options)
            elif kind == "regex":
                described = llguidance.LLMatcher.grammar_from_regex(source)
            else:
                described = llguidance.LLMatcher.grammar_from_lark(source)
        except ValueError as wrong:
            raise _refused(kind, str(wrong)) from wrong
        compiled = llguidance.LLMatcher(tokenizer, described, log_level=0, limits=llguidance.LLParserLimits(**LIMITS))
        first = compiled.deep_copy()
        if not first.is_error():
            first.compute_bitmask()
        if first.is_error():
            raise _refused(kind, first.get_error())
        return Grammar(kind, compiled, self._pool, self._architecture.text.vocabulary)


def _source(kind: Kind, text: str | Mapping[str, Any] | bool) -> str:
    """The text that is compiled; RequestError for what has none or is too long."""
    given: Any = {"type": "object"} if kind == "json_object" else text
    try:
        source = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
        if kind == "json_schema":
            parsed = json.loads(source)
            if parsed is not True and not isinstance(parsed, dict):
                raise ValueError("a schema is an object, or true")
            source = "{}" if parsed is True else source
    except (ValueError, TypeError, RecursionError) as wrong:
        raise RequestError(kind, got=f"no JSON ({wrong})"[:200], expected="a JSON schema", fix="correct it") from wrong
    if not source or len(source) > MOST_CHARACTERS:
        got = f"{len(source)} characters"
        raise RequestError(kind, got=got, expected=f"1 to {MOST_CHARACTERS}", fix="use a smaller grammar")
    return check_text(source, kind)


def _refused(where: str, error: str) -> RequestError:
    """The first line of what llguidance says; its rest is state."""
    line = re.sub(r"\s+", " ", error.split("\n", 1)[0]).strip()[:200] or "an answer that cannot begin"
    return RequestError(
        f"grammar, {where}", got=line, expected="a grammar within its limits", fix="correct or simplify it"
    )


def _library() -> Any:
    try:
        import llguidance
    except ImportError as missing:
        raise RequestError(
            "grammar", got="no llguidance", expected="it installed", fix="pip install 'molmo2-iree[serve]'"
        ) from missing
    return llguidance


class _Vocabulary:
    """What llguidance reads of a tokenizer: bytes of each id with a head row, and ids of a text."""

    def __init__(self, tokenizer: Tokenizer, architecture: Architecture) -> None:
        self._encode = tokenizer.encode_text
        self.eos_token_id, self.bos_token_id = architecture.tokens.stop[0], None
        self.tokens = [tokenizer.token_bytes(number) for number in range(architecture.text.vocabulary)]
        self.special_token_ids = [number for number, content in enumerate(self.tokens) if not content]

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _tokenizer(tokenizer: Tokenizer, architecture: Architecture) -> "LLTokenizer":
    llguidance = _library()
    wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, architecture))
    ends = [token for token in architecture.tokens.stop if token < architecture.text.vocabulary]
    return llguidance.LLTokenizer(wrapped, n_vocab=architecture.text.vocabulary, eos_token=ends)
