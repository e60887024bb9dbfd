"""Make batches in a second process while the network trains on the one before."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.queues import Queue
from typing import Any

from molmo2_iree.build.embedded_config import Variant

Maker = Callable[[Variant, Sequence[int], int], Any]
"""Makes the batch of a seed with a number of rows."""

AHEAD = 6
"""Batches kept ready."""


def _work(queue: "Queue[Any]", make: Maker, variant: Variant, seed: Sequence[int], steps: range, rows: int) -> None:
    for step in steps:
        queue.put(make(variant, (*seed, step), rows))


@contextmanager
def feed(make: Maker, variant: Variant, seed: Sequence[int], steps: range, rows: int) -> Iterator[Iterator[Any]]:
    """Batches of the seeds ``(*seed, step)`` in the order of ``steps``."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[Any] = context.Queue(AHEAD)
    worker = context.Process(target=_work, args=(queue, make, variant, seed, steps, rows), daemon=True)
    worker.start()

    def batches() -> Iterator[Any]:
        for _ in steps:
            yield queue.get()

    try:
        yield batches()
    finally:
        worker.terminate()
        worker.join()
