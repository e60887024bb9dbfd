"""Events of a request as an iterator: for a thread that may wait, and for an event loop that must not."""

import asyncio
import queue
from collections.abc import AsyncGenerator, Generator

from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.events import Event, Finished
from molmo2_iree.runtime.request import Request


def answer(engine: Engine, request: Request) -> Generator[Event]:
    """Submit and yield every event, the last one a ``Finished``. Closing the generator early cancels the request."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ticket = engine.submit(request, events.put)
    try:
        while True:
            event = events.get()
            yield event
            if isinstance(event, Finished):
                return
    finally:
        ticket.cancel()


async def stream(engine: Engine, request: Request) -> AsyncGenerator[Event]:
    """The same for asyncio: the loop never waits for the engine. Close it (``aclosing``) to cancel the request."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def deliver(event: Event) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    ticket = engine.submit(request, deliver)
    try:
        while True:
            event = await events.get()
            yield event
            if isinstance(event, Finished):
                return
    finally:
        ticket.cancel()
