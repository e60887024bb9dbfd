"""The engine without its thread: one turn runs one step for some sequences and tells what came of it.

A step that raises fails the sequences it was for and no other: their slots are zeroed and the next turn goes on.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from molmo2_iree.errors import EngineError, MolmoError
from molmo2_iree.runtime.answer import Answer
from molmo2_iree.runtime.counters import Counters
from molmo2_iree.runtime.events import Event, Finished, Times, Usage
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.reading import Look, Unit, plan_reading
from molmo2_iree.runtime.request import Request
from molmo2_iree.runtime.sampling import first_not_finite
from molmo2_iree.runtime.scheduler import Policy, Read, Scheduler, Work
from molmo2_iree.runtime.sequence import Reason, Sequence, slot_of
from molmo2_iree.runtime.steps import Reading, Steps

Deliver = Callable[[Event], object]
"""Called on the engine's thread with each event of a request: it must not wait. One that raises cancels the request."""

Order = Callable[[], None]
"""Something to do between two steps, on the engine's thread."""

BeforeStep = Callable[[Work], object]
"""Called before each step; what it raises counts as raised by the step."""

log = logging.getLogger("molmo2_iree.engine")


@dataclass(frozen=True)
class Options:
    """``max_waiting`` requests may wait for a slot; ``picture_bytes`` of image tokens are kept."""

    max_waiting: int = 256
    picture_bytes: int = 256 * 2**20
    policy: Policy = field(default_factory=Policy)


@dataclass(eq=False)
class Job:
    """A request under way: what belongs to its sequence besides the state."""

    sequence: Sequence
    request: Request
    deliver: Deliver
    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    answer: Answer | None = None
    reading: Reading | None = None
    units: deque[Unit] = field(default_factory=deque[Unit])
    logits: np.ndarray | None = None
    """Held while a grammar's mask is not there yet."""


class Worker:
    """Scheduler, device and answers. All calls come from one thread."""

    def __init__(
        self, model: Model, options: Options, order: Callable[[Order], None], before_step: BeforeStep | None
    ) -> None:
        """``order`` takes an order from any thread and has it run between two turns."""
        self._model, self._order, self._before_step = model, order, before_step
        layout = model.bundle.cache
        self.scheduler = Scheduler(model.bundle.buckets, layout.slots, options.policy)
        self.steps = Steps(model, options.picture_bytes)
        self.jobs: dict[int, Job] = {}
        self.counters, self.failures = Counters(), 0

    def enqueue(self, job: Job) -> None:
        """Let a job wait for its slot; its number must be in ``jobs``."""
        self.scheduler.enqueue(job.sequence)

    def cancel(self, number: int) -> None:
        """End a job; one that has ended is left alone."""
        job = self.jobs.get(number)
        if job is not None:
            self.scheduler.cancel(job.sequence, time.monotonic())
            self._ended(job, "cancelled", None)

    def end_all(self, error: MolmoError | None) -> None:
        """End every job: failed with the error, or cancelled without one."""
        for job in list(self.jobs.values()):
            self.scheduler.cancel(job.sequence, time.monotonic())
            self._ended(job, "failed" if error else "cancelled", error)

    def turn(self) -> bool:
        """Run the next step, if there is one; False if there was nothing to do."""
        work = self.scheduler.next(time.monotonic())
        if work is None:
            return False
        jobs = [self.jobs[sequence.number] for sequence in work.sequences]
        began = time.monotonic()
        try:
            if self._before_step is not None:
                self._before_step(work)
            results = self._read(jobs[0]) if isinstance(work, Read) else self._decode(jobs)
        except Exception as error:
            log.exception("a step failed, of requests %s", [job.sequence.number for job in jobs])
            self._step_failed(jobs, error)
            return True
        finally:
            self.counters.step_s += time.monotonic() - began
        if not isinstance(work, Read):
            self.counters.steps[work.slots, work.context] += 1
            self.counters.step_tokens += len(jobs)
        self._spread(jobs, results)
        return True

    # --- steps -----------------------------------------------------------------------------------------------------

    def _begin(self, job: Job) -> Reading:
        """What follows from admission: the units to read, and the answer's state."""
        sequence, counters = job.sequence, self.counters
        job.admitted = time.monotonic()
        prompt = sequence.prompt
        reading = self.steps.begin(job.request.payload, prompt, slot_of(sequence))
        job.units.extend(plan_reading(prompt, sequence.reused, reading.tokens, self._model.bundle.buckets))
        job.answer = Answer(job.request, self._model.processor.tokenizer, self._model.architecture)
        counters.prompt_tokens += len(prompt.ids)
        counters.reused_tokens += sequence.reused
        if not sequence.reused:
            counters.picture_queries += len(prompt.digests)
            counters.picture_hits += sum(digest in reading.tokens for digest in prompt.digests)
        return reading

    def _read(self, job: Job) -> list[np.ndarray | None]:
        if job.reading is None:
            job.reading = self._begin(job)
        unit = job.units.popleft()
        logits = self.steps.read(unit, job.reading)
        self.counters.units[type(unit).__name__] += 1
        if not isinstance(unit, Look):
            self.scheduler.has_read(job.sequence, unit.stop)
        return [logits if not job.units else None]

    def _decode(self, jobs: Series[Job]) -> Series[np.ndarray | None]:
        fed = {slot_of(job.sequence): job.sequence for job in jobs}
        logits = self.steps.decode(
            {slot: sequence.said[-1] for slot, sequence in fed.items()},
            {slot: sequence.rows for slot, sequence in fed.items()},
        )
        for sequence in fed.values():
            self.scheduler.has_stepped(sequence)
        return [logits[slot] for slot in fed]

    def _step_failed(self, jobs: Iterable[Job], error: Exception) -> None:
        self.counters.failed_steps += 1
        self.failures += 1
        told = EngineError(
            "engine, a step", got=f"{type(error).__name__}: {error}"[:300], expected="logits", fix="send it again"
        )
        self._spoilt(jobs, told)

    def _spoilt(self, jobs: Iterable[Job], error: MolmoError) -> None:
        """End jobs whose step failed, and zero what it may have left in their slots."""
        failed = list(jobs)
        self.steps.clear([self.scheduler.finish(job.sequence, "failed", time.monotonic()) for job in failed])
        for job in failed:
            self._ended(job, "failed", error)

    # --- answers ---------------------------------------------------------------------------------------------------

    def _spread(self, jobs: Series[Job], results: Series[np.ndarray | None]) -> None:
        """Give each job its logits; ones that are not finite fail it, and the step if none is."""
        given = [(job, logits) for job, logits in zip(jobs, results, strict=True) if logits is not None]
        spoilt = {job.sequence.number: at for job, x in given if (at := first_not_finite(x)) is not None}
        whole = not given or len(spoilt) < len(given)
        self.failures = 0 if whole else self.failures + 1
        self.counters.failed_steps += not whole
        for job, logits in given:
            if job.sequence.number in spoilt:
                self._spoilt([job], _not_finite(logits, spoilt[job.sequence.number]))
            else:
                self._speak(job, logits)

    def _speak(self, job: Job, logits: np.ndarray) -> None:
        """Choose the next id, or put the job aside until its grammar's mask is there."""
        answer = job.answer
        if answer is None:
            raise RuntimeError(f"request {job.sequence.number} has logits and no answer")
        if not answer.ready:
            job.logits = logits
            self.scheduler.park(job.sequence)
            answer.when_ready(partial(self._order, partial(self._resume, job)))
            return
        try:
            token, reason = answer.take(logits)
        except Exception as error:
            if not isinstance(error, MolmoError):
                log.exception("no next token for request %d", job.sequence.number)
                error = EngineError("engine, sampling", got=repr(error)[:300], expected="a token", fix="send it again")
            self.scheduler.finish(job.sequence, "failed", time.monotonic())
            self._ended(job, "failed", error)
            return
        if token is not None:
            job.first_token = job.first_token or time.monotonic()
            self.scheduler.says(job.sequence, token.id)
            self.counters.answer_tokens += 1
            if not self._deliver(job, token):
                reason = "cancelled"
        if reason is not None:
            self.scheduler.finish(job.sequence, reason, time.monotonic())
            self._ended(job, reason, None)

    def _resume(self, job: Job) -> None:
        if job.logits is not None and job.sequence.number in self.jobs:
            logits, job.logits = job.logits, None
            self.scheduler.unpark(job.sequence)
            self._speak(job, logits)

    def _deliver(self, job: Job, event: Event) -> bool:
        """False if nobody listens any more."""
        try:
            job.deliver(event)
        except Exception:
            log.info("the listener of request %d is gone", job.sequence.number, exc_info=True)
            return False
        return True

    def _ended(self, job: Job, reason: Reason, error: MolmoError | None) -> None:
        """The last event; the sequence has ended already."""
        sequence = job.sequence
        text = job.answer.flush() if job.answer is not None else ""
        usage = Usage(len(sequence.prompt.ids), sequence.reused, len(sequence.said))
        times = Times(job.submitted, job.admitted, job.first_token, time.monotonic())
        self.counters.finished[reason] += 1
        self._deliver(job, Finished(reason, text, usage, times, error))
        del self.jobs[sequence.number]


def _not_finite(logits: np.ndarray, at: int) -> EngineError:
    return EngineError(
        f"logits, id {at}", got=logits[at], expected="finite values", fix="run the gates: snakemake gates"
    )
