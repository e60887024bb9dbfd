"""Answer one request: prefill, then decode greedily until a stop id, a limit, or the end of the context."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.payload import Payload, check_payload
from molmo2_iree.runtime.checks import instance, whole
from molmo2_iree.runtime.model import Cache, Model
from molmo2_iree.runtime.sampling import greedy


@dataclass
class Timings:
    """Seconds spent in each step of the line; ``decode`` has one entry a token."""

    steps: dict[str, float] = field(default_factory=dict)
    decode: list[float] = field(default_factory=list)

    def add(self, step: str, started: float) -> None:
        """Add the time since ``started`` (of ``time.perf_counter``) to a step."""
        self.steps[step] = self.steps.get(step, 0.0) + time.perf_counter() - started


def start(model: Model, payload: Payload, cache: Cache, timings: Timings, slot: int = 0) -> np.ndarray:
    """Everything up to the first logits [V], each step timed."""
    instance("payload", payload, Payload)
    check_payload(payload, model.architecture)
    parts = [np.zeros((0, model.architecture.text.width), np.float32)]
    for image in payload:
        began = time.perf_counter()
        features = model.vision(image)
        timings.add("vision", began)
        began = time.perf_counter()
        parts.append(model.connector(image, features))
        timings.add("connector", began)
    began = time.perf_counter()
    embeddings = model.merge(payload, np.concatenate(parts))
    timings.add("merge", began)
    began = time.perf_counter()
    logits = model.prefill_embeddings(payload, embeddings, cache, slot)
    timings.add("prefill", began)
    return logits


def check_room(model: Model, payload: Payload, max_tokens: int) -> None:
    """Refuse a request that no bucket holds, with the numbers, before anything is computed."""
    instance("payload", payload, Payload)
    check_payload(payload, model.architecture)
    length, most, context = len(payload.ids), model.bundle.buckets.tokens[-1], model.bundle.cache.context
    if length > most:
        raise RequestError(
            "prompt",
            got=f"{length} tokens, {int(payload.types.sum())} of them for {payload.images} pictures",
            expected=f"at most {most}, the largest of buckets.tokens",
            fix="give a shorter question or fewer pictures, or build with a larger bucket",
        )
    if length == context:
        raise RequestError(
            "prompt",
            got=f"{length} tokens",
            expected=f"at most {context - 1}: the context holds {context}, the answer included",
            fix="give a shorter question or fewer pictures, or build with a larger cache.context",
        )
    whole(f"max tokens, after a prompt of {length} in a context of {context}", max_tokens, 1, context - length)


def generate(model: Model, payload: Payload, max_tokens: int, timings: Timings | None = None) -> Iterator[int]:
    """Greedy ids, one at a time, the stop id not included."""
    timings = Timings() if timings is None else timings
    check_room(model, payload, max_tokens)
    cache = model.new_cache()
    token = greedy(start(model, payload, cache, timings))
    position = len(payload.ids)
    for done in range(1, max_tokens + 1):
        if token in model.architecture.tokens.stop:
            return
        yield token
        if done == max_tokens:
            return
        began = time.perf_counter()
        token = greedy(model.decode({0: token}, {0: position}, cache)[0])
        timings.decode.append(time.perf_counter() - began)
        position += 1
