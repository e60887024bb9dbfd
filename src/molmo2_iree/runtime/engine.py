"""The engine: many requests at once on one bundle. One thread owns the device; all else may come from any thread.

>>> with Engine(load(folder)) as engine:
...     request = engine.request(model.prepare(messages_for("What is this?"), []), max_tokens=64)
...     ticket = engine.submit(request, deliver=print)

docs/engine.md is the guide. ``scheduler`` says what runs when, ``worker`` what a turn does, ``steps`` how.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from molmo2_iree.errors import BusyError, EngineError
from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.counters import Metrics, copied, rows_held
from molmo2_iree.runtime.grammar import Grammar, Grammars, Kind
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.request import Request, make_request
from molmo2_iree.runtime.sampling import Sampling
from molmo2_iree.runtime.sequence import Sequence, numbered
from molmo2_iree.runtime.stopping import Stopping
from molmo2_iree.runtime.worker import BeforeStep, Deliver, Job, Options, Order, Worker

MOST_FAILURES = 3
"""Failed steps in a row after which the engine is not ready; a step that succeeds makes it ready again."""

log = logging.getLogger("molmo2_iree.engine")


@dataclass(frozen=True)
class Ticket:
    """A submitted request. ``cancel`` may be called from any thread, at any time, and more than once."""

    number: int
    cancel: Callable[[], None]


class Engine:
    """A running engine. Close it, or use it in a ``with`` statement."""

    def __init__(self, model: Model, options: Options | None = None, before_step: BeforeStep | None = None) -> None:
        """``before_step`` is called on the engine's thread before each step; tests inject failures there."""
        self.model, self._options = model, options or Options()
        self._worker = Worker(model, self._options, self._give_order, before_step)
        self._numbers, self._orders = numbered(), deque[Order]()
        self._changed = threading.Condition()
        self._accepting, self._running = True, True
        self._grammars: Grammars | None = None
        self._grammars_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # --- requests --------------------------------------------------------------------------------------------------

    def request(
        self,
        payload: Payload,
        max_tokens: int,
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
        grammar: Grammar | None = None,
        *,
        reuse: bool = True,
    ) -> Request:
        """A checked request, see :func:`..request.make_request`. It may take milliseconds."""
        return make_request(self.model, payload, max_tokens, sampling, stopping, grammar, reuse=reuse)

    def grammar(self, kind: Kind, text: str | Mapping[str, Any] | bool = "") -> Grammar:
        """A compiled grammar, see :meth:`..grammar.Grammars.compile`. It may take some hundred milliseconds."""
        with self._grammars_lock:
            if self._grammars is None:
                self._grammars = Grammars(self.model.processor.tokenizer, self.model.architecture)
        return self._grammars.compile(kind, text)

    def submit(self, request: Request, deliver: Deliver) -> Ticket:
        """Queue a request; returns at once. BusyError if too many wait or the engine is ending.

        ``deliver`` gets every event, the last one a ``Finished``, on the engine's thread: hand them over and return.
        """
        with self._changed:
            waiting = sum(job.admitted is None for job in list(self._worker.jobs.values()))
            idle = sum(slot.owner is None for slot in self._worker.scheduler.slots)
            if not self._accepting or waiting >= self._options.max_waiting + idle:
                self._worker.counters.refused += 1
                got = f"{waiting} requests waiting" if self._accepting else "an engine that is ending"
                expected = f"at most {self._options.max_waiting} for {len(self._worker.scheduler.slots)} slots"
                raise BusyError("engine", got=got, expected=expected, fix="send the request again later")
            number = next(self._numbers)
            sequence = Sequence(number, request.prompt, request.max_tokens, request.reuse)
            job = Job(sequence, request, deliver, time.monotonic())
            self._worker.jobs[number] = job
            self._worker.counters.submitted += 1
        self._give_order(partial(self._worker.enqueue, job))
        return Ticket(number, partial(self._cancel, number))

    def _cancel(self, number: int) -> None:
        self._give_order(partial(self._worker.cancel, number))

    # --- how it stands ---------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now and is likely to be answered."""
        return self._accepting and self._thread.is_alive() and self._worker.failures < MOST_FAILURES

    def metrics(self) -> Metrics:
        """A copy of the counters and gauges."""
        worker, scheduler = self._worker, self._worker.scheduler
        owned, kept = rows_held(scheduler)
        return Metrics(
            counters=copied(worker.counters),
            waiting=sum(job.admitted is None for job in list(worker.jobs.values())),
            reading=int(scheduler.reading is not None),
            speaking=len(scheduler.speaking),
            slots=len(scheduler.slots),
            rows_owned=owned,
            rows_kept=kept,
            rows=len(scheduler.slots) * self.model.bundle.cache.context,
            picture_bytes=worker.steps.pictures.held,
            ready=self.ready,
        )

    # --- the end ---------------------------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for those there are; False if some are left after ``timeout`` seconds."""
        with self._changed:
            self._accepting = False
            return self._changed.wait_for(lambda: not self._worker.jobs, timeout)

    def close(self) -> None:
        """Cancel what is left and end the thread, after the step it is in."""
        with self._changed:
            self._accepting = False
        self._give_order(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._grammars is not None:
            self._grammars.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _give_order(self, order: Order) -> None:
        """Have ``order`` run on the engine's thread before the next step."""
        with self._changed:
            self._orders.append(order)
            self._changed.notify_all()

    def _stop(self) -> None:
        self._running = False

    def _run(self) -> None:
        error: EngineError | None = None
        try:
            busy = False
            while self._take_orders(wait=not busy):
                busy = self._worker.turn()
        except BaseException as fault:
            log.exception("the engine's thread ends")
            error = EngineError("engine", got=repr(fault)[:300], expected="a running engine", fix="start it again")
        finally:
            with self._changed:
                self._accepting = False
            self._worker.end_all(error)
            with self._changed:
                self._changed.notify_all()

    def _take_orders(self, *, wait: bool) -> bool:
        """Run what was ordered, waiting for it if there is nothing else to do; False once stopped."""
        with self._changed:
            if not self._worker.jobs:
                self._changed.notify_all()
            while wait and not self._orders:
                self._changed.wait()
            orders, self._orders = self._orders, deque()
        for order in orders:
            order()
        return self._running
