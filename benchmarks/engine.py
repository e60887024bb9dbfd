"""Does a batch pay, and do streams keep moving while a picture is read? On one bundle, in one run.

    python benchmarks/engine.py [--bundle FOLDER] [--tokens 64] [--rounds 15]

Prints decode throughput of four streams as a ratio to one stream (the bar is 2.5), and the longest time a running
stream waited for its next token while pictures were read, beside the longest without them. Short rounds of one and four
streams alternate, and the best median step of each is compared, so that a neighbour on the machine disturbs both alike.
"""

import argparse
import json
import queue
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from molmo2_iree.commands.ask import built_bundle
from molmo2_iree.preprocess.prompt import messages_for
from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.events import Finished
from molmo2_iree.runtime.model import load
from molmo2_iree.runtime.request import Request
from molmo2_iree.runtime.stopping import Stopping

BAR = 2.5
QUESTIONS = ("What colours are there?", "Why is the sky blue?", "Name three birds.", "How deep is the sea?")


class Stream:
    """A submitted request, and when each of its tokens came."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.times: list[float] = []
        self._end: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        engine.submit(request, self._take)

    def _take(self, event: object) -> None:
        self._end.put(event) if isinstance(event, Finished) else self.times.append(time.perf_counter())

    def wait(self) -> "Stream":
        """Until it has ended."""
        self._end.get()
        return self


def text_request(engine: Engine, question: str, tokens: int) -> Request:
    """A request without pictures that speaks for exactly so many tokens."""
    payload = engine.model.prepare(messages_for(question), [])
    return engine.request(payload, tokens, stopping=Stopping(ignore_end=True), reuse=False)


def picture_request(engine: Engine, seed: int) -> Request:
    """A picture of the most crops that nothing has seen before, with one token of answer."""
    pixels = np.random.default_rng(seed).integers(0, 256, (700, 900, 3), np.uint8)
    payload = engine.model.prepare(messages_for("What is there?", 1), [pixels])
    return engine.request(payload, 1, reuse=False)


def throughput(engine: Engine, streams: int, tokens: int) -> float:
    """Tokens a second of so many streams while all of them speak, from the median time of a step."""
    running = [Stream(engine, text_request(engine, question, tokens)) for question in QUESTIONS[:streams]]
    times = [stream.wait().times for stream in running]
    first, last = max(t[0] for t in times), min(t[-1] for t in times)
    steps = [at for at in times[0] if first < at <= last]
    return streams / float(np.median(np.diff(steps)))


def longest_gap(engine: Engine, tokens: int, pictures: Sequence[int]) -> float:
    """Milliseconds: the longest gap of three streams, pictures being read one after the other meanwhile."""
    requests = [picture_request(engine, seed) for seed in pictures]
    running = [Stream(engine, text_request(engine, question, tokens)) for question in QUESTIONS[:3]]
    while not all(stream.times for stream in running):
        time.sleep(0.001)
    began = time.perf_counter()
    for request in requests:
        Stream(engine, request).wait()
    ended = time.perf_counter() if pictures else float("inf")
    times = [[at for at in stream.wait().times if began <= at <= ended] for stream in running]
    return 1000 * max((after - before for t in times for before, after in pairwise(t)), default=0.0)


def main() -> int:
    """Exit status 1 if the batch is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    folder, expected = (asked.bundle, None) if asked.bundle else built_bundle(Path("config/default.yaml"))
    with Engine(load(folder, expected)) as engine:
        best = {1: 0.0, 4: 0.0}
        for _ in range(asked.rounds):
            for streams in best:
                best[streams] = max(best[streams], throughput(engine, streams, asked.tokens))
        long = 8 * asked.tokens
        quiet = min(longest_gap(engine, long, ()) for _ in range(asked.rounds))
        gaps = [longest_gap(engine, long, range(4 * k, 4 * k + 4)) for k in range(asked.rounds)]
    ratio = best[4] / best[1]
    found = {
        "batch_1_tokens_per_s": round(best[1], 1),
        "batch_4_tokens_per_s": round(best[4], 1),
        "batch_4_over_batch_1": round(ratio, 2),
        "bar": BAR,
        "longest_gap_ms": round(quiet, 2),
        "longest_gap_while_a_picture_is_read_ms": round(min(gaps), 2),
        "the_same_in_the_worst_round_ms": round(max(gaps), 2),
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return int(ratio < BAR)


if __name__ == "__main__":
    sys.exit(main())
