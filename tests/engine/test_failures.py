"""A step that raises, or gives no numbers, fails the requests in it; the others never notice."""

import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest
from engine_requests import Asked, request, until
from runtime_requests import CAT, pictured, text

from molmo2_iree.errors import EngineError, RequestError
from molmo2_iree.runtime.answer import Answer
from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.scheduler import Decode, Read, Work
from molmo2_iree.runtime.steps import Steps


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "molmo2_iree.engine")


class Fault:
    """Raises before steps that ``when`` picks, as long as it is armed."""

    def __init__(self, when: Callable[[Work], bool]) -> None:
        self.when, self.armed, self.failed = when, True, list[Work]()

    def __call__(self, work: Work) -> None:
        if self.armed and self.when(work):
            self.failed.append(work)
            raise RuntimeError("the device said no")


def test_a_failing_unit_fails_its_reader_alone(model: Model) -> None:
    fault = Fault(lambda work: isinstance(work, Read) and work.sequence.number == 1)
    with Engine(model, before_step=fault) as engine:
        one = Asked(engine, request(model, text(model), 60))
        bad = Asked(engine, request(model, pictured(model, [CAT])))
        end = bad.end()
        assert (end.reason, bad.tokens) == ("failed", [])
        assert isinstance(end.error, EngineError)
        assert str(end.error).startswith("engine, a step: got RuntimeError: the device said no, expected logits. Fix:")
        assert len(one.ids) == 60
        assert engine.ready
        assert engine.metrics().counters.failed_steps == 1
        with Engine(model) as fresh:
            again = Asked(engine, request(model, pictured(model, [CAT])))
            assert again.logprobs == Asked(fresh, request(model, pictured(model, [CAT]))).logprobs
            assert one.logprobs == Asked(fresh, request(model, text(model), 60)).logprobs


def test_a_failing_step_fails_all_in_it_and_none_that_waits(model: Model) -> None:
    fault = Fault(lambda work: isinstance(work, Decode) and len(work.sequences) == 4)
    with Engine(model, before_step=fault) as engine:
        running = [Asked(engine, request(model, text(model, f"{k}?"), 400)) for k in range(4)]
        waiting = Asked(engine, request(model, text(model, "Why?"), 20))
        assert [one.end().reason for one in running] == ["failed"] * 4
        assert len(waiting.ids) == 20
        assert engine.ready
        assert len(fault.failed) == 1
        found = engine.metrics()
        assert (found.rows_owned, found.rows_kept, found.speaking) == (0, 0, 0)
        with Engine(model) as fresh:
            assert waiting.logprobs == Asked(fresh, request(model, text(model, "Why?"), 20)).logprobs


def test_three_in_a_row_and_back(model: Model) -> None:
    fault = Fault(lambda _: True)
    with Engine(model, before_step=fault) as engine:
        for count in range(1, 4):
            assert engine.ready
            assert Asked(engine, request(model, text(model))).end().reason == "failed"
            assert engine.metrics().counters.failed_steps == count
        assert not engine.ready
        assert not engine.metrics().ready
        fault.armed = False
        assert len(Asked(engine, request(model, text(model), 5)).ids) == 5
        assert engine.ready


def test_two_in_a_row_are_forgiven(model: Model) -> None:
    fault = Fault(lambda _: True)
    with Engine(model, before_step=fault) as engine:
        for _ in range(2):
            for _ in range(2):
                Asked(engine, request(model, text(model))).end()
            fault.armed = False
            Asked(engine, request(model, text(model), 2)).end()
            fault.armed = True
        assert engine.ready
        assert engine.metrics().counters.failed_steps == 4


def test_one_row_without_numbers(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    real, spoilt = Steps.decode, threading.Event()

    def decode(self: Steps, ids: dict[int, int], positions: dict[int, int]) -> dict[int, np.ndarray]:
        logits = real(self, ids, positions)
        if len(ids) == 2 and not spoilt.is_set():
            spoilt.set()
            logits[max(ids)][7] = np.nan
        return logits

    monkeypatch.setattr(Steps, "decode", decode)
    with Engine(model) as engine:
        one = Asked(engine, request(model, text(model), 200)).started()
        bad = Asked(engine, request(model, text(model, "Why?"), 200))
        end = bad.end()
        assert str(end.error).startswith("logits, id 7: got nan, expected finite values")
        assert isinstance(end.error, EngineError)
        assert len(one.ids) == 200
        assert engine.ready
        assert engine.metrics().counters.failed_steps == 0


def test_rows_without_numbers_are_failed_steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.full(model.architecture.text.vocabulary, np.inf, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "read", lambda *_: logits)
        with Engine(model) as engine:
            for _ in range(3):
                assert Asked(engine, request(model, text(model))).end().reason == "failed"
            assert not engine.ready


def test_a_picture_without_numbers_is_not_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pictured(model, [CAT])
    with Engine(model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Model, "connector", lambda *_: np.full((40, 80), np.nan, np.float32))
            end = Asked(engine, request(model, payload)).end()
            assert "image tokens of picture 0: got not finite" in str(end.error)
            assert isinstance(end.error, EngineError)
        assert len(Asked(engine, request(model, payload, 5)).ids) == 5
        assert engine.metrics().counters.picture_hits == 0


def test_a_request_that_fails_by_itself_touches_no_slot(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RequestError("grammar, a step", got="too complex", expected="less", fix="simplify it")

    monkeypatch.setattr(Answer, "take", broken)
    monkeypatch.setattr(Steps, "clear", None)
    with Engine(model) as engine:
        end = Asked(engine, request(model, text(model))).end()
        assert (end.reason, type(end.error)) == ("failed", RequestError)
        assert engine.ready
        assert engine.metrics().counters.failed_steps == 0


def test_what_a_failed_step_left_in_a_slot_is_gone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN rows beyond a new owner's length would spoil it: 0 * NaN is NaN."""
    with Engine(model) as engine:
        real = Steps.decode

        def decode(self: Steps, ids: dict[int, int], positions: dict[int, int]) -> dict[int, np.ndarray]:
            for place, value in enumerate(self._cache.arrays):
                rows = np.array(value.to_host())  # pyright: ignore[reportAttributeAccessIssue]
                rows[list(ids)] = np.nan
                self._cache.arrays[place] = self.model.device.put(rows)
            return real(self, ids, positions)

        with monkeypatch.context() as patch:
            patch.setattr(Steps, "decode", decode)
            assert Asked(engine, request(model, text(model), 200)).end().reason == "failed"
        with Engine(model) as fresh:
            after = Asked(engine, request(model, text(model, "Why?"), 20))
            assert after.logprobs == Asked(fresh, request(model, text(model, "Why?"), 20)).logprobs


def test_the_thread_itself_dies_loudly(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model)
    one = Asked(engine, request(model, text(model), 900)).started()

    def broken(_: object) -> None:
        raise KeyError("a fault of the scheduler")

    monkeypatch.setattr(engine._worker.scheduler, "next", broken)
    end = one.end()
    assert (end.reason, type(end.error)) == ("failed", EngineError)
    until(lambda: not engine.ready)
    engine.close()
