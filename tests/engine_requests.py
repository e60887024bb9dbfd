"""Requests to an engine on the built bundle, and what came of them."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.engine import Engine, Ticket
from molmo2_iree.runtime.events import Event, Finished, Token
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.request import Request, make_request
from molmo2_iree.runtime.sampling import Sampling
from molmo2_iree.runtime.stopping import Stopping

PATIENCE = 60.0
"""Seconds after which an engine that does not answer is a failure."""

ON = Stopping(ignore_end=True)
"""Speak until the most tokens asked for."""


class Asked:
    """A submitted request and its events so far."""

    def __init__(self, engine: Engine, request: Request, also: Callable[[Event], object] = lambda _: None) -> None:
        self.events: list[Event] = []
        self._also, self._first, self._end = also, threading.Event(), queue.SimpleQueue[Finished]()
        self.ticket: Ticket = engine.submit(request, self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._first.set()
        if isinstance(event, Finished):
            self._end.put(event)
        self._also(event)

    def started(self) -> "Asked":
        """Wait for its first event."""
        assert self._first.wait(PATIENCE), "no event came"
        return self

    def end(self) -> Finished:
        """Wait for its last event."""
        finished = self._end.get(timeout=PATIENCE)
        self._end.put(finished)
        return finished

    @property
    def tokens(self) -> list[Token]:
        return [event for event in self.events if isinstance(event, Token)]

    @property
    def ids(self) -> list[int]:
        """Its ids, once it has ended."""
        self.end()
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        """All its text, once it has ended."""
        self.end()
        return "".join(event.text for event in self.events)

    @property
    def logprobs(self) -> list[Any]:
        """Ids with all that was reported of their logits, once it has ended."""
        self.end()
        return [(token.id, token.logprobs) for token in self.tokens]


def request(model: Model, payload: Payload, tokens: int = 24, **changed: Any) -> Request:
    """Greedy with every logprob there is, on until the most tokens, nothing reused."""
    options = {"sampling": Sampling(top_logprobs=20), "stopping": ON, "reuse": False, **changed}
    return make_request(model, payload, tokens, **options)


def until(met: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait until ``met``; the seconds it took."""
    began = time.monotonic()
    while not met():
        assert time.monotonic() - began < seconds, "it did not happen"
        time.sleep(0.001)
    return time.monotonic() - began
