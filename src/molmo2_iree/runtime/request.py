"""A checked request: all that can be refused is refused here, on the caller's thread, before the engine hears of it."""

import dataclasses
import secrets
from dataclasses import dataclass

from molmo2_iree.preprocess.payload import Payload, check_payload
from molmo2_iree.runtime.checks import instance, whole
from molmo2_iree.runtime.grammar import Grammar
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.prefix import Prompt, read_prompt
from molmo2_iree.runtime.reading import check_room
from molmo2_iree.runtime.sampling import Sampling, check_sampling
from molmo2_iree.runtime.stopping import Stopping, check_stopping

MOST_CHOICES = 128


@dataclass(frozen=True, eq=False)
class Request:
    """Made by :func:`make_request`. ``reuse`` False neither goes on from a kept prefix nor leaves one."""

    payload: Payload
    prompt: Prompt
    max_tokens: int
    sampling: Sampling
    seed: int
    stopping: Stopping
    grammar: Grammar | None
    reuse: bool


def make_request(
    model: Model,
    payload: Payload,
    max_tokens: int,
    sampling: Sampling | None = None,
    stopping: Stopping | None = None,
    grammar: Grammar | None = None,
    *,
    reuse: bool = True,
) -> Request:
    """Check everything against the model; RequestError says what does not fit, with the numbers.

    It hashes the pictures, which takes milliseconds: an event loop calls it on another thread. Without a seed one is
    drawn.
    """
    sampling, stopping = sampling or Sampling(), stopping or Stopping()
    instance("payload", payload, Payload)
    check_payload(payload, model.architecture)
    vocabulary = model.architecture.text.vocabulary
    check_sampling(sampling, vocabulary)
    check_stopping(stopping, vocabulary)
    if grammar is not None:
        instance("grammar", grammar, Grammar)
    prompt = read_prompt(payload)
    check_room(prompt, max_tokens, model.bundle.buckets, model.bundle.cache.context)
    seed = secrets.randbits(63) if sampling.seed is None else int(sampling.seed)
    return Request(payload, prompt, max_tokens, sampling, seed, stopping, grammar, reuse)


def choices(request: Request, count: int) -> list[Request]:
    """``count`` requests for as many answers to one prompt: seeds s, s + 1, ..., so each can be had again alone."""
    whole("n", count, 1, MOST_CHOICES)
    return [dataclasses.replace(request, seed=request.seed + k) for k in range(count)]
