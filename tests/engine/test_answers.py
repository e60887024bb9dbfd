"""What an answer says: seeds, stop strings, characters cut by tokens, limits, logprobs and grammars."""

import json
import re
import threading
from typing import Any

import numpy as np
import pytest
from engine_requests import Asked, request
from runtime_requests import CAT, pictured, text

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.tokenizer import BYTE_OF
from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.generate import generate
from molmo2_iree.runtime.grammar import Constraint
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.request import choices, make_request
from molmo2_iree.runtime.sampling import Sampling
from molmo2_iree.runtime.stopping import Stopping

WARM = Sampling(temperature=1.2, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def engine(model: Model) -> Any:
    with Engine(model) as running:
        yield running


# --- sampling ------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_text_whatever_the_companions(engine: Engine) -> None:
    model = engine.model
    alone = Asked(engine, request(model, text(model), 60, sampling=WARM)).ids
    for batch in (1, 3):
        others = [Asked(engine, request(model, pictured(model, [CAT]), 90, sampling=WARM)) for _ in range(batch)]
        again = Asked(engine, request(model, text(model), 60, sampling=WARM))
        assert again.ids == alone
        for other in others:
            other.ticket.cancel()
    seeds = [Sampling(temperature=1.2, top_p=0.95, seed=seed) for seed in range(6)]
    assert len({tuple(Asked(engine, request(model, text(model), 20, sampling=one)).ids) for one in seeds}) == 6


def test_several_answers_to_one_prompt(engine: Engine) -> None:
    model = engine.model
    made = make_request(model, text(model), 20, WARM, Stopping(ignore_end=True), reuse=False)
    several = [Asked(engine, one) for one in choices(made, 5)]
    answers = [one.ids for one in several]
    assert len({tuple(ids) for ids in answers}) == 5
    assert [one.seed for one in choices(made, 3)] == [11, 12, 13]
    third = Asked(engine, request(model, text(model), 20, sampling=Sampling(temperature=1.2, top_p=0.95, seed=13)))
    assert third.ids == answers[2]
    for wrong in (0, 129, 1.0):
        with pytest.raises(RequestError, match="n: got"):
            choices(made, wrong)  # pyright: ignore[reportArgumentType]


def test_without_a_seed_every_answer_is_another(engine: Engine) -> None:
    free = Sampling(temperature=1.5)
    answers = [tuple(Asked(engine, request(engine.model, text(engine.model), 20, sampling=free)).ids) for _ in range(4)]
    assert len(set(answers)) == 4


def test_bias_and_penalties_reach_the_answer(engine: Engine) -> None:
    model = engine.model
    plain = Asked(engine, request(model, text(model), 30)).ids
    banned = plain[0]
    assert Asked(engine, request(model, text(model), 30, sampling=Sampling(logit_bias={65: 100}))).ids == [65] * 30
    assert (
        banned not in Asked(engine, request(model, text(model), 30, sampling=Sampling(logit_bias={banned: -100}))).ids
    )
    spread = Asked(engine, request(model, text(model), 30, sampling=Sampling(presence_penalty=2, frequency_penalty=2)))
    assert len(set(spread.ids)) > len(set(plain))


def test_logprobs(engine: Engine) -> None:
    model = engine.model
    asked = Asked(engine, request(model, text(model), 5, sampling=Sampling(top_logprobs=3)))
    logits = model.prefill(text(model), model.new_cache()).astype(np.float64)
    wanted = logits - np.log(np.exp(logits).sum())
    first = asked.logprobs[0][1]
    assert [token for token, _ in first.top] == np.argsort(-wanted)[:3].tolist()
    assert first.chosen == first.top[0][1] == pytest.approx(wanted.max(), abs=1e-9)
    assert len(asked.logprobs) == 5
    bare = Asked(engine, request(model, text(model), 5, sampling=Sampling(top_logprobs=0)))
    assert [found.top for _, found in bare.logprobs] == [()] * 5
    assert all(
        found is None for _, found in Asked(engine, request(model, text(model), 5, sampling=Sampling())).logprobs
    )


# --- where it ends -------------------------------------------------------------------------------------------------


def test_it_ends_where_the_simple_loop_ends(engine: Engine) -> None:
    model = engine.model
    for payload in (text(model), pictured(model, [CAT])):
        asked = Asked(engine, request(model, payload, 64, stopping=Stopping()))
        assert asked.ids == list(generate(model, payload, 64))
        assert asked.end().reason == ("length" if len(asked.ids) == 64 else "stop")
        assert asked.text == model.processor.tokenizer.decode(asked.ids)


def test_stop_ids(engine: Engine) -> None:
    model = engine.model
    ids = Asked(engine, request(model, text(model), 20)).ids
    stop = next(token for k, token in enumerate(ids) if k >= 5 and token not in ids[:k])
    asked = Asked(engine, request(model, text(model), 20, stopping=Stopping(ids=(stop,), ignore_end=True)))
    assert asked.ids == ids[: ids.index(stop)]
    assert asked.end().reason == "stop"
    assert asked.end().usage.answer == len(asked.ids)


def said(model: Model, content: str | bytes) -> list[Sampling]:
    """Parameters that make the model say these bytes, one id each; ids of bytes are their values' places."""
    raw = content.encode() if isinstance(content, str) else content
    character = {value: character for character, value in BYTE_OF.items()}
    return [Sampling(logit_bias={model.processor.tokenizer.token_id(character[value]): 100}) for value in raw]


def speaking(monkeypatch: pytest.MonkeyPatch, model: Model, content: str | bytes) -> None:
    """Make every answer say these bytes, one id each."""
    script = [next(iter(one.logit_bias)) for one in said(model, content)]
    from molmo2_iree.runtime.answer import Answer

    real = Answer.take

    def take(self: Answer, logits: np.ndarray) -> Any:
        forced = np.full_like(logits, -50)
        forced[script[self._count]] = 50
        return real(self, forced)

    monkeypatch.setattr(Answer, "take", take)


@pytest.mark.parametrize(
    ("content", "stops", "shown", "pieces"),
    [
        ("the end of it", ("end",), "the ", ["t", "h", "", "e ", "", "", ""]),
        ("the en of it", ("end",), "the en of it", None),
        ("a\n\nb", ("\n\n",), "a", ["a", "", ""]),
        ("one STOP two", ("two", "STOP"), "one ", None),
        ("caf\u00e9!", ("\u00e9",), "caf", ["c", "a", "f", "", ""]),
        ("xaab", ("aab",), "x", ["x", "", "", ""]),
        ("xaaab", ("aab",), "xa", ["x", "", "", "a", ""]),
        ("going", ("going on",), "going", ["", "", "", "", ""]),
    ],
)
def test_stop_strings_across_token_borders(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    stops: tuple[str, ...],
    shown: str,
    pieces: list[str] | None,
) -> None:
    speaking(monkeypatch, model, content)
    with Engine(model) as engine:
        asked = Asked(engine, request(model, text(model), len(content.encode()), stopping=Stopping(strings=stops)))
        assert asked.text == shown
        assert asked.end().reason == ("stop" if any(stop in content for stop in stops) else "length")
        if pieces is not None:
            assert [token.text for token in asked.tokens] == pieces


def test_characters_cut_by_tokens_and_by_the_end(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "n\u00e9\U0001f600!".encode()
    speaking(monkeypatch, model, content + "\u00e9".encode()[:1])
    with Engine(model) as engine:
        asked = Asked(engine, request(model, text(model), len(content) + 1, stopping=Stopping()))
        assert asked.text == "n\u00e9\U0001f600!\ufffd"
        assert [token.text for token in asked.tokens] == ["n", "", "\u00e9", "", "", "", "\U0001f600", "!", ""]
        assert asked.end().text == "\ufffd"


def test_the_most_tokens_there_is_room_for(engine: Engine) -> None:
    model = engine.model
    payload = text(model)
    room = model.bundle.cache.context - len(payload.ids)
    asked = Asked(engine, request(model, payload, room))
    assert len(asked.ids) == room
    for wrong in (room + 1, 0, -1):
        words = (
            f"max tokens, after a prompt of {len(payload.ids)} in a context of 1024: got {wrong}, expected 1 to {room}"
        )
        with pytest.raises(RequestError, match=words):
            request(model, payload, wrong)


def test_a_text_prompt_longer_than_any_prefill_bucket(engine: Engine) -> None:
    model = engine.model
    payload = text(model, "~" * 950)
    assert len(payload.ids) > model.bundle.buckets.tokens[-1]
    asked = Asked(engine, request(model, payload, 10))
    cache = model.new_cache()
    pieces = [model.extend(payload.ids[at : at + 16], at, cache) for at in range(0, len(payload.ids), 16)]
    assert asked.ids[0] == int(np.argmax(pieces[-1]))
    assert len(asked.ids) == 10


# --- grammars ------------------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["cat", "dog", "bird"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["animal", "legs", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(4))
def test_answers_follow_a_schema(engine: Engine, seed: int) -> None:
    grammar = engine.grammar("json_schema", SCHEMA)
    hot = Sampling(temperature=1.5, seed=seed, top_logprobs=0)
    companions = [Asked(engine, request(engine.model, text(engine.model), 100)) for _ in range(2)]
    asked = Asked(engine, request(engine.model, text(engine.model), 400, sampling=hot, grammar=grammar))
    found = json.loads(asked.text)
    assert set(found) == {"animal", "legs", "tags"}
    assert found["animal"] in ("cat", "dog", "bird")
    assert 0 <= found["legs"] <= 8
    assert len(found["tags"]) <= 2
    assert asked.end().reason == "stop"
    alone = Asked(engine, request(engine.model, text(engine.model), 400, sampling=hot, grammar=grammar))
    assert alone.logprobs == asked.logprobs
    assert all(one.end().reason == "length" for one in companions)


def test_answers_follow_a_regular_expression_and_a_lark_grammar(engine: Engine) -> None:
    model = engine.model
    dates = engine.grammar("regex", r"[12][0-9]{3}-(0[1-9]|1[0-2])")
    assert re.fullmatch(r"[12]\d{3}-\d\d", Asked(engine, request(model, text(model), 50, grammar=dates)).text)
    sums = engine.grammar("lark", 'start: number ("+" number){2}\nnumber: /[1-9]{1,2}/')
    assert re.fullmatch(r"\d+\+\d+\+\d+", Asked(engine, request(model, text(model), 50, grammar=sums)).text)


def test_json_objects(engine: Engine) -> None:
    model, grammar = engine.model, engine.grammar("json_object")
    ended = 0
    for seed in range(6):
        hot = Sampling(temperature=2.0, seed=seed, logit_bias={125: 6.0, 34: 3.0})  # } and " oftener
        asked = Asked(engine, request(model, text(model), 200, sampling=hot, grammar=grammar))
        if asked.end().reason == "stop":
            ended += 1
            assert isinstance(json.loads(asked.text), dict)
    assert ended


def test_a_slow_mask_holds_up_nobody_else(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real, go = Constraint._compute, threading.Event()

    def slow(self: Constraint) -> np.ndarray:
        go.wait(10)
        return real(self)

    with Engine(model) as engine:
        grammar = engine.grammar("json_schema", SCHEMA)
        monkeypatch.setattr(Constraint, "_compute", slow)
        asked = Asked(engine, request(model, text(model), 200, grammar=grammar))
        other = Asked(engine, request(model, text(model, "Why?"), 50))
        assert len(other.ids) == 50
        assert asked.events == []
        cancelled = Asked(engine, request(model, text(model), 200, grammar=grammar))
        cancelled.ticket.cancel()
        assert cancelled.end().reason == "cancelled"
        go.set()
        assert json.loads(asked.text)["animal"]


def test_a_grammar_that_proves_too_complex_fails_its_request(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Constraint) -> np.ndarray:
        raise RequestError("grammar, a step", got="too complex", expected="less", fix="simplify it")

    with Engine(model) as engine:
        grammar = engine.grammar("json_object")
        other = Asked(engine, request(model, text(model, "Why?"), 50))
        monkeypatch.setattr(Constraint, "_compute", broken)
        asked = Asked(engine, request(model, text(model), 20, grammar=grammar))
        assert asked.end().reason == "failed"
        assert isinstance(asked.end().error, RequestError)
        assert len(other.ids) == 50
        assert engine.ready
