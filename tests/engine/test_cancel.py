"""Cancelling: the slot is free before the next step and within 0.2 s, wherever the request stands."""

import threading

import pytest
from engine_requests import Asked, request, until
from runtime_requests import CAT, noise, pictured, text

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.delivery import answer
from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.events import Event, Finished, Token
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.scheduler import Read, Work

SOON = 0.2
"""Seconds from the call to the last event; the best of a few, as other processes may hold the machine."""


def test_while_it_speaks(model: Model) -> None:
    with Engine(model) as engine:
        taken = []
        for _ in range(4):
            one = Asked(engine, request(model, text(model), 900)).started()
            other = Asked(engine, request(model, text(model, "Why?"), 40))
            one.ticket.cancel()
            taken.append(until(lambda one=one: isinstance(one.events[-1], Finished)))
            assert one.end().reason == "cancelled"
            assert one.end().usage.answer == len(one.tokens) > 0
            count = len(one.events)
            assert len(other.ids) == 40
            assert len(one.events) == count
            assert engine.metrics().rows_owned == 0
        assert min(taken) < SOON


def test_it_takes_part_in_no_step_that_begins_after(model: Model) -> None:
    steps: list[tuple[int, ...]] = []
    cancelled, go = threading.Event(), threading.Event()

    def watch(work: Work) -> None:
        steps.append(tuple(sequence.number for sequence in work.sequences))
        if len(steps) == 8:
            cancelled.set()
            go.wait(5)  # the step that is being cancelled into

    with Engine(model, before_step=watch) as engine:
        one = Asked(engine, request(model, text(model), 900))
        other = Asked(engine, request(model, text(model, "Why?"), 12))
        cancelled.wait(5)
        one.ticket.cancel()
        go.set()
        assert one.end().reason == "cancelled"
        other.end()
    assert not any(0 in numbers for numbers in steps[8:])


@pytest.mark.parametrize("unit", range(3))
def test_while_it_reads_a_picture(model: Model, unit: int) -> None:
    reached, go = threading.Event(), threading.Event()
    units: list[Work] = []

    def watch(work: Work) -> None:
        units.append(work) if isinstance(work, Read) else None
        if len(units) == unit + 1:
            reached.set()
            go.wait(5)

    with Engine(model, before_step=watch) as engine:
        one = Asked(engine, request(model, pictured(model, [CAT])))
        reached.wait(5)
        one.ticket.cancel()
        go.set()
        until(lambda: bool(one.events))
        assert one.end().reason == "cancelled"
        assert one.tokens == []
        assert len(units) == unit + 1
        after = Asked(engine, request(model, pictured(model, [CAT])))
        with Engine(model) as fresh:
            assert after.logprobs == Asked(fresh, request(model, pictured(model, [CAT]))).logprobs


def test_while_it_waits(model: Model) -> None:
    with Engine(model) as engine:
        running = [Asked(engine, request(model, text(model, f"{k}?"), 400)) for k in range(4)]
        waiting = [Asked(engine, request(model, text(model), 5)) for _ in range(3)]
        for one in running:
            one.started()
        waiting[1].ticket.cancel()
        until(lambda: bool(waiting[1].events))
        assert waiting[1].end().times.admitted is None
        for one in running:
            one.ticket.cancel()
        assert [len(waiting[k].ids) for k in (0, 2)] == [5, 5]


def test_cancelling_twice_or_too_late_does_nothing(model: Model) -> None:
    with Engine(model) as engine:
        one = Asked(engine, request(model, text(model), 3))
        one.end()
        for _ in range(3):
            one.ticket.cancel()
        two = Asked(engine, request(model, text(model), 3))
        assert len(two.ids) == 3
        assert [type(event) for event in one.events] == [Token, Token, Token, Finished]


def test_a_listener_that_fails_is_cancelled_alone(model: Model) -> None:
    def gone(event: Event) -> None:
        if isinstance(event, Token) and event.index == 2:
            raise RuntimeError("the client is gone")

    with Engine(model) as engine:
        one = Asked(engine, request(model, text(model), 400), gone)
        other = Asked(engine, request(model, text(model, "Why?"), 30))
        assert one.end().reason == "cancelled"
        assert len(one.tokens) == 3
        assert len(other.ids) == 30
        assert engine.ready


def test_leaving_an_iterator_cancels(model: Model) -> None:
    with Engine(model) as engine:
        events = answer(engine, request(model, text(model), 900))
        assert isinstance(next(events), Token)
        events.close()
        until(lambda: engine.metrics().counters.finished["cancelled"] == 1)
        assert engine.metrics().speaking == 0


def test_many_at_every_moment(model: Model) -> None:
    payloads = [text(model), pictured(model, [noise(5)]), text(model, "Why? " * 40)]
    with Engine(model) as engine:
        for k in range(40):
            one = Asked(engine, request(model, payloads[k % 3], 50))
            threading.Event().wait(0.0015 * (k % 9))
            one.ticket.cancel()
            assert one.end().reason in ("cancelled", "length")
        assert engine.metrics().rows_owned == 0
        assert len(Asked(engine, request(model, payloads[0], 9)).ids) == 9


def test_nothing_is_taken_after_the_end(model: Model) -> None:
    engine = Engine(model)
    one = Asked(engine, request(model, text(model), 900)).started()
    engine.close()
    assert one.end().reason == "cancelled"
    assert not engine.ready
    with pytest.raises(RequestError, match="an engine that is ending"):
        engine.submit(request(model, text(model)), print)
    engine.close()
