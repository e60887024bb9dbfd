"""Streams for threads and for an event loop, queue limits, draining and metrics."""

import asyncio
import contextlib
import threading
import time

import pytest
from engine_requests import Asked, request, until
from runtime_requests import CAT, of_length, pictured, text

from molmo2_iree.errors import BusyError
from molmo2_iree.runtime.delivery import answer, stream
from molmo2_iree.runtime.engine import Engine, Options
from molmo2_iree.runtime.events import Event, Finished, Token
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.scheduler import Decode, Work
from molmo2_iree.stages import Program


def test_an_iterator_gives_every_event(model: Model) -> None:
    with Engine(model) as engine:
        events = list(answer(engine, request(model, text(model), 12)))
        assert [event.index for event in events if isinstance(event, Token)] == list(range(12))
        assert isinstance(events[-1], Finished)
        assert len(events) == 13


async def _collected(engine: Engine, one: object) -> list[Event]:
    return [event async for event in stream(engine, one)]  # pyright: ignore[reportArgumentType]


def test_an_event_loop_serves_many_and_never_waits(model: Model) -> None:
    wanted = []
    with Engine(model) as engine:
        requests = [request(model, text(model, f"{k}?"), 40) for k in range(6)]
        wanted = [Asked(engine, one).ids for one in requests]

        async def main() -> tuple[list[list[Event]], float]:
            worst, done = 0.0, False

            async def beat() -> None:
                nonlocal worst
                while not done:
                    began = time.perf_counter()
                    await asyncio.sleep(0.005)
                    worst = max(worst, time.perf_counter() - began - 0.005)

            heart = asyncio.create_task(beat())
            found = await asyncio.gather(*(_collected(engine, one) for one in requests))
            done = True
            await heart
            return found, worst

        found, worst = asyncio.run(main())
        assert [[event.id for event in one if isinstance(event, Token)] for one in found] == wanted
        assert worst < 0.25


def test_closing_a_stream_cancels(model: Model) -> None:
    async def main(engine: Engine) -> None:
        async with contextlib.aclosing(stream(engine, request(model, text(model), 900))) as events:
            async for event in events:
                assert isinstance(event, Token)
                break
        task = asyncio.create_task(_collected(engine, request(model, text(model), 900)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Engine(model) as engine:
        asyncio.run(main(engine))
        until(lambda: engine.metrics().counters.finished["cancelled"] == 2)
        assert engine.metrics().rows_owned == 0


def test_a_loop_that_has_ended_cancels_its_streams(model: Model) -> None:
    with Engine(model) as engine:

        async def main() -> None:
            events = stream(engine, request(model, text(model), 900))
            await anext(events)

        asyncio.run(main())
        until(lambda: not engine._worker.jobs)
        assert engine.ready


def test_a_full_queue(model: Model) -> None:
    with Engine(model, Options(max_waiting=2)) as engine:
        running = [Asked(engine, request(model, text(model, f"{k}?"), 600)) for k in range(4)]
        for one in running:
            one.started()
        waiting = [Asked(engine, request(model, text(model), 2)) for _ in range(2)]
        words = "engine: got 2 requests waiting, expected at most 2 for 4 slots. Fix: send the request again later"
        with pytest.raises(BusyError, match=words):
            engine.submit(request(model, text(model)), print)
        found = engine.metrics()
        assert (found.waiting, found.speaking, found.counters.refused) == (2, 4, 1)
        running[0].ticket.cancel()
        assert [len(one.ids) for one in waiting] == [2, 2]
        Asked(engine, request(model, text(model), 2)).end()


def test_draining_ends_what_there_is_and_takes_no_more(model: Model) -> None:
    with Engine(model) as engine:
        some = [Asked(engine, request(model, text(model, f"{k}?"), 60)) for k in range(6)]
        long = Asked(engine, request(model, text(model), 900))
        assert not engine.drain(0.001)
        assert not engine.ready
        with pytest.raises(BusyError, match="got an engine that is ending"):
            engine.submit(request(model, text(model)), print)
        long.ticket.cancel()
        assert engine.drain(30)
        assert [len(one.ids) for one in some] == [60] * 6
    assert Engine(model).drain(5)


def test_metrics(model: Model) -> None:
    payload = pictured(model, [CAT])
    with Engine(model) as engine:
        Asked(engine, request(model, payload, 5)).end()
        Asked(engine, request(model, payload, 5, reuse=True)).end()
        found = engine.metrics()
        counters = found.counters
        assert counters.submitted == counters.finished["length"] == 2
        assert (counters.prompt_tokens, counters.reused_tokens) == (2 * len(payload.ids), 0)
        assert counters.answer_tokens == 10
        assert sum(counters.steps.values()) == counters.step_tokens == 8
        assert counters.units == {"Look": 3, "Prefill": 2}
        assert (found.rows, found.rows_owned, found.rows_kept) == (4096, 0, len(payload.ids) + 4)
        assert (found.waiting, found.reading, found.speaking, found.slots) == (0, 0, 0, 4)
        assert found.ready
        assert 0 < counters.step_s < 5
        Asked(engine, request(model, payload, 5)).end()
        assert counters.submitted == 2  # a copy


def test_times_are_in_order(model: Model) -> None:
    with Engine(model) as engine:
        one = Asked(engine, request(model, pictured(model, [CAT]), 5))
        times = one.end().times
        assert times.admitted is not None
        assert times.first_token is not None
        assert times.submitted <= times.admitted < times.first_token < times.finished


def test_streams_keep_moving_while_a_picture_is_read(model: Model) -> None:
    """Between two units of the reader there is a step of all that speak."""
    works: list[Work] = []
    with Engine(model, before_step=works.append) as engine:
        running = [Asked(engine, request(model, text(model, f"{k}?"), 300)).started() for k in range(3)]
        reader = Asked(engine, request(model, pictured(model, [CAT]), 1))
        reader.end()
        for one in running:
            one.ticket.cancel()
    kinds = [
        type(work).__name__ for work in works if 3 in {s.number for s in work.sequences} or len(work.sequences) == 3
    ]
    units = [k for k, kind in enumerate(kinds) if kind == "Read"]
    assert len(units) == 4
    assert all(kinds[k + 1] == "Decode" for k in units[:-1])


def test_a_step_runs_the_program_the_scheduler_names(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Decode`` carries the buckets, and the model picks the same ones from slots and positions."""
    works: list[Work] = []
    programs: list[str] = []
    real = Model.call

    def call(self: Model, program: Program, *rest: object) -> object:
        programs.append(program.name)
        return real(self, program, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Model, "call", call)
    with Engine(model, before_step=works.append) as engine:
        long = Asked(engine, request(model, of_length(model, 240), 40))
        for k in range(3):
            Asked(engine, request(model, text(model, f"{k}?"), 5 * k + 1)).end()
        long.end()
    named = [f"decode-b{work.slots}x{work.context}" for work in works if isinstance(work, Decode)]
    assert [program for program in programs if program.startswith("decode")] == named
    assert {"decode-b1x256", "decode-b4x256", "decode-b1x1024"} <= set(named)


def test_many_threads_submit_at_once(model: Model) -> None:
    with Engine(model) as engine:
        answers: dict[int, list[int]] = {}

        def ask(k: int) -> None:
            answers[k] = Asked(engine, request(model, text(model, f"{k % 4}?"), 15)).ids

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 16
        assert all(answers[k] == answers[k % 4] for k in range(16))
