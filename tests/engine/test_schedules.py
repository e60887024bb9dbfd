"""Schedules of the real engine, one turn at a time: requests come, are cancelled and fail in any order.

Whatever happens, each request says the beginning of what it says alone, every token once and in order, and ends once.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from runtime_requests import CAT, noise, of_length, pictured, text

from molmo2_iree.runtime.events import Event, Finished, Token
from molmo2_iree.runtime.grammar import Grammars
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.request import Request, make_request
from molmo2_iree.runtime.sampling import Sampling
from molmo2_iree.runtime.sequence import Sequence
from molmo2_iree.runtime.stopping import Stopping
from molmo2_iree.runtime.worker import Job, Options, Worker

TOKENS = 12
KINDS = 7


@pytest.fixture(scope="module")
def requests(model: Model) -> Any:
    """Requests of every kind: text, long text, pictures, sampled, with stop strings, with a grammar."""
    grammars = Grammars(model.processor.tokenizer, model.architecture)
    date = grammars.compile("regex", "[0-9]{4}-[0-9]{2}")
    on, warm = Stopping(ignore_end=True), Sampling(temperature=1.1, top_p=0.9, seed=5, presence_penalty=0.5)
    yield [
        make_request(model, text(model), TOKENS, stopping=on),
        make_request(model, text(model, "Tell me of the sea, please."), TOKENS, warm, on),
        make_request(model, of_length(model, 270), TOKENS, stopping=on),
        make_request(model, pictured(model, [CAT]), TOKENS, stopping=on),
        make_request(model, pictured(model, [noise(1)]), TOKENS, warm, Stopping(("e", "aab"), ignore_end=True)),
        make_request(model, pictured(model, [noise(2)]), TOKENS, stopping=on, reuse=False),
        make_request(model, text(model, "A date?"), TOKENS, warm, grammar=date),
    ]
    grammars.close()


class Desk:
    """A worker whose orders are run between turns, and a fault that can be armed."""

    def __init__(self, model: Model) -> None:
        self.orders: deque[Callable[[], None]] = deque()
        self.fault = False
        self.worker = Worker(model, Options(), self.orders.append, self._before)
        self.number = 0

    def _before(self, _: object) -> None:
        if self.fault:
            self.fault = False
            raise RuntimeError("injected")

    def submit(self, request: Request) -> tuple[int, list[Event]]:
        events: list[Event] = []
        sequence = Sequence(self.number, request.prompt, request.max_tokens, request.reuse)
        job = Job(sequence, request, events.append, 0.0)
        self.worker.jobs[self.number] = job
        self.worker.enqueue(job)
        self.number += 1
        return self.number - 1, events

    def turn(self) -> bool:
        while self.orders:
            self.orders.popleft()()
        return self.worker.turn()

    def finish(self) -> None:
        while self.worker.jobs:
            self.turn()


@pytest.fixture(scope="module")
def alone(model: Model, requests: list[Request]) -> list[tuple[list[int], str, str]]:
    """(ids, text, reason) of each."""
    found = []
    for request in requests:
        desk = Desk(model)
        _, events = desk.submit(request)
        desk.finish()
        found.append(told(events))
    return found


def told(events: list[Event]) -> tuple[list[int], str, str]:
    ids = [event.id for event in events if isinstance(event, Token)]
    reasons = [event.reason for event in events if isinstance(event, Finished)]
    return ids, "".join(event.text for event in events), reasons[0] if reasons else ""


class Schedule(RuleBasedStateMachine):
    """Rules over one desk; the test fills in what is shared by all examples."""

    model: ClassVar[Model]
    requests: ClassVar[list[Request]]
    alone: ClassVar[list[tuple[list[int], str, str]]]

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(self.model)
        self.asked: list[tuple[int, int, list[Event]]] = []

    @rule(kind=st.integers(0, KINDS - 1))
    def submit(self, kind: int) -> None:
        self.asked.append((kind, *self.desk.submit(self.requests[kind])))

    @rule(count=st.integers(1, 15))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.desk.turn()

    @rule()
    def fail(self) -> None:
        self.desk.fault = True
        self.desk.turn()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.desk.worker.cancel(data.draw(st.sampled_from(self.asked))[1])

    @invariant()
    def each_says_what_it_says_alone(self) -> None:
        for kind, _, events in self.asked:
            ids, said, reason = told(events)
            assert [event.index for event in events if isinstance(event, Token)] == list(range(len(ids)))
            assert sum(isinstance(event, Finished) for event in events) == bool(reason)
            assert not reason or isinstance(events[-1], Finished)
            assert ids == self.alone[kind][0][: len(ids)]
            if reason in ("stop", "length"):
                assert (ids, said, reason) == self.alone[kind]

    @invariant()
    def slots_are_owned_by_jobs(self) -> None:
        worker = self.desk.worker
        owners = [slot.owner.number for slot in worker.scheduler.slots if slot.owner is not None]
        assert len(set(owners)) == len(owners)
        assert set(owners) <= worker.jobs.keys()

    def teardown(self) -> None:
        self.desk.fault = False
        self.desk.finish()
        self.each_says_what_it_says_alone()
        assert all(told(events)[2] for _, _, events in self.asked)
        assert self.desk.worker.scheduler.idle


def test_any_schedule(
    model: Model, requests: list[Request], alone: list[tuple[list[int], str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "molmo2_iree.engine")
    Schedule.model, Schedule.requests, Schedule.alone = model, requests, alone
    assert len(requests) == KINDS
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    bounds = settings(max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(Schedule, settings=bounds)
