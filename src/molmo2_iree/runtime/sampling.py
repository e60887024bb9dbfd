"""From logits [V] to the next id, on the host: what a request may ask for, and one choice at a time.

A choice depends on the request's own logits, seed and token index, and on nothing else: the same seed gives the same
text whatever the companions. Order: penalties, bias, mask, temperature, min-p, top-k, top-p. V is the vocabulary.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.checks import instance, whole

MOST_TOP_LOGPROBS = 20
MOST_BIASES = 1024
COLDEST = 1e-5
"""A temperature below it picks the largest logit: dividing by less only overflows."""

_HEADS = (128, 2048, 32_768)
"""Sizes tried when looking for the likeliest ids, so that a large vocabulary is not sorted whole."""


@dataclass(frozen=True)
class Sampling:
    """How ids are chosen. The defaults are greedy.

    ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 cut nothing. ``repetition_penalty`` counts prompt and answer, the two
    others the answer alone. ``top_logprobs`` None reports no logprobs, 0 the chosen id's alone.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Logprobs:
    """Of one choice: the chosen id's, and the likeliest (id, logprob) in falling order.

    They are the model's own, before penalties, bias, mask and temperature.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Choice:
    """The next id, and its logprobs where they were asked for."""

    id: int
    logprobs: Logprobs | None = None


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Refuse, with RequestError, a parameter of a wrong type, not a number, or out of its range."""
    instance("sampling", sampling, Sampling)
    number("temperature", sampling.temperature, 0, 100)
    whole("top_k", sampling.top_k, 0, 2**31 - 1)
    number("top_p", sampling.top_p, 0, 1, above=True)
    number("min_p", sampling.min_p, 0, 1)
    if sampling.seed is not None:
        whole("seed", sampling.seed, -(2**63), 2**64 - 1)
    number("repetition_penalty", sampling.repetition_penalty, 0, 100, above=True)
    number("presence_penalty", sampling.presence_penalty, -2, 2)
    number("frequency_penalty", sampling.frequency_penalty, -2, 2)
    if sampling.top_logprobs is not None:
        whole("top_logprobs", sampling.top_logprobs, 0, MOST_TOP_LOGPROBS)
    instance("logit_bias", sampling.logit_bias, Mapping)
    whole("entries of logit_bias", len(sampling.logit_bias), 0, MOST_BIASES)
    for token, bias in sampling.logit_bias.items():
        whole("logit_bias, id", token, 0, vocabulary - 1)
        number(f"logit_bias[{token}]", bias, -100, 100)


def number(where: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """A finite int or float in ``low`` to ``high``, with ``above`` more than ``low``; a bool is none."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    fits = real and low <= value <= high and not (above and value == low)
    if not fits:
        got = repr(value) if isinstance(value, float) else type(value).__name__ if not real else f"{value}"[:40]
        expected = f"a number {'above' if above else 'from'} {low} {'and up ' if above else ''}to {high}"
        raise RequestError(where, got=got, expected=expected, fix="pass a number in that range")
    return float(value)


def first_not_finite(logits: np.ndarray) -> int | None:
    """The first id of logits [V] that is NaN or infinite, or None: of [0, NaN, inf], 1."""
    finite = np.isfinite(logits)
    return None if finite.all() else int(np.argmin(finite))


def greedy(logits: np.ndarray) -> int:
    """The first maximum of logits [V]. RequestError for logits that are not finite: they would pick at random."""
    at = first_not_finite(logits)
    if at is not None:
        raise RequestError(
            f"logits, id {at}", got=logits[at], expected="finite values", fix="run the gates: snakemake gates"
        )
    return int(np.argmax(logits))


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on the seed and the token's index alone."""
    counted = struct.pack("<QQ", seed % 2**64, index)
    bits = int.from_bytes(hashlib.blake2b(counted, digest_size=8, person=b"molmo2 token").digest(), "little")
    return (bits >> 11) * 2.0**-53


def penalised(
    logits: np.ndarray, seen: np.ndarray, counts: np.ndarray, repetition: float, presence: float, frequency: float
) -> np.ndarray:
    """logits [V] with the penalties taken off; ``seen`` bool [V] of prompt and answer, ``counts`` [V] of the answer.

    A seen id's logit is divided by ``repetition`` if positive and multiplied if negative: with 2, [4, -4] becomes
    [2, -8]. Then ``presence`` is taken off once and ``frequency`` for each time.
    """
    repeated = np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits)
    return repeated - presence * (counts > 0) - frequency * counts


def likeliest(scores: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` ids with the largest of scores [V], in falling order, the smaller id first among equals.

    Scores [1, 3, 2, 3] and a count of 3 give [1, 3, 2].
    """
    count = min(count, len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    held = np.flatnonzero(scores >= least)
    return held[np.argsort(-scores[held], kind="stable")][:count]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities float64 [V] of scores [V], of which one at least is finite."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def candidates(scores: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Ids of scores [V] (already divided by the temperature) that may be chosen, in rising order.

    ``min_p`` keeps what is at least so many times as likely as the likeliest, ``top_k`` the k likeliest of these, and
    ``top_p`` the smallest set of the likeliest of these whose probabilities sum to at least p.
    """
    least = scores.max() + math.log(min_p) if min_p > 0 else -np.inf
    ids = np.flatnonzero((scores >= least) & (scores > -np.inf))
    if 0 < top_k < len(ids):
        ids = ids[likeliest(scores[ids], top_k)]
    if top_p < 1:
        ids = ids[_nucleus(softmax(scores[ids]), top_p)]
    return np.sort(ids)


def _nucleus(probabilities: np.ndarray, top_p: float) -> np.ndarray:
    """Places of the smallest set: [0.5, 0.2, 0.3] and 0.7 give [0, 2]."""
    for size in (*_HEADS, len(probabilities)):
        head = likeliest(probabilities, size)
        mass = np.cumsum(probabilities[head])
        if mass[-1] >= top_p:
            return head[: int(np.searchsorted(mass, top_p)) + 1]
    return np.arange(len(probabilities))


def logprobs_of(logits: np.ndarray, chosen: int, count: int) -> Logprobs:
    """Logprobs of logits [V]: the chosen id's and the ``count`` likeliest."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= math.log(np.exp(scores).sum())
    ids = likeliest(scores, count) if count else ()
    return Logprobs(float(scores[chosen]), tuple((int(k), float(scores[k])) for k in ids))


class Sampler:
    """Choices of one request, one after the other. The parameters have passed :func:`check_sampling`."""

    def __init__(self, sampling: Sampling, seed: int, prompt: Sequence[int] | np.ndarray, vocabulary: int) -> None:
        """``seed`` is used where the temperature needs one; ids of ``prompt`` without a head row have no penalty."""
        self.sampling, self.seed, self._index = sampling, seed, 0
        asked = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        self._penalties = asked if asked != (1, 0, 0) else None
        size = vocabulary if self._penalties else 0
        self._seen, self._counts = np.zeros(size, bool), np.zeros(size, np.int32)
        given = np.asarray(prompt, np.int64)
        self._seen[given[given < size]] = True
        self._plain = self._penalties is None and not sampling.logit_bias

    def choose(self, logits: np.ndarray, allowed: np.ndarray | None = None) -> Choice:
        """The next id of finite logits [V]; ``allowed`` is bool [V]. RequestError if nothing is allowed."""
        scores = self._scores(logits, allowed)
        if self.sampling.temperature < COLDEST:
            chosen = int(np.argmax(scores))
        else:
            chosen = self._drawn(scores.astype(np.float64) / self.sampling.temperature)
        self._index += 1
        if self._penalties is not None:
            self._seen[chosen] = True
            self._counts[chosen] += 1
        tops = self.sampling.top_logprobs
        return Choice(chosen, None if tops is None else logprobs_of(logits, chosen, tops))

    def _drawn(self, scaled: np.ndarray) -> int:
        asked, at = self.sampling, uniform(self.seed, self._index)
        if (asked.top_k, asked.top_p, asked.min_p) == (0, 1, 0):
            return drawn(softmax(scaled), at)
        ids = candidates(scaled, asked.top_k, asked.top_p, asked.min_p)
        return int(ids[drawn(softmax(scaled[ids]), at)])

    def _scores(self, logits: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
        if self._plain and allowed is None:
            return logits
        scores = logits.astype(np.float64)
        if self._penalties is not None:
            scores = penalised(scores, self._seen, self._counts, *self._penalties)
        for token, bias in self.sampling.logit_bias.items():
            scores[token] += bias
        if allowed is not None:
            if not allowed.any():
                raise RequestError(
                    "grammar", got="no id that may follow", expected="one at least", fix="loosen the grammar"
                )
            scores[~allowed] = -np.inf
        return scores


def drawn(probabilities: np.ndarray, at: float) -> int:
    """The place whose share of [0, 1) holds ``at``: of [0.5, 0, 0.25, 0.25], 0.6 is in the third share, place 2."""
    shares = np.cumsum(probabilities)
    place = int(np.searchsorted(shares, at * shares[-1], side="right"))
    return place if place < len(shares) else int(np.flatnonzero(probabilities)[-1])
