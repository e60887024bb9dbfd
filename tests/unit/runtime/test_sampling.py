"""Choices from logits: each rule on a small example, all of them against a plain reading of the rules."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.sampling import (
    Choice,
    Sampler,
    Sampling,
    candidates,
    check_sampling,
    drawn,
    first_not_finite,
    likeliest,
    logprobs_of,
    penalised,
    softmax,
    uniform,
)

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0], np.float32)
scores = hnp.arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([-3.0, -1.0, 0.0, 0.5, 0.75, 1.0, 2.0]))


def sampler(seed: int = 1, prompt: tuple[int, ...] = (), **changed: Any) -> Sampler:
    return Sampler(Sampling(**changed), seed, prompt, len(LOGITS))


def chosen(times: int, **changed: Any) -> list[int]:
    made = sampler(**changed)
    return [made.choose(LOGITS).id for _ in range(times)]


# --- examples of the docstrings ------------------------------------------------------------------------------------


def test_the_first_number_that_is_not_finite() -> None:
    assert first_not_finite(np.array([0, np.nan, np.inf])) == 1
    assert first_not_finite(np.array([0.0, -1e30])) is None


def test_likeliest_in_falling_order() -> None:
    assert likeliest(np.array([1, 3, 2, 3]), 3).tolist() == [1, 3, 2]
    assert likeliest(np.array([1, 3, 2, 3]), 1).tolist() == [1]
    assert likeliest(np.array([1, 3]), 9).tolist() == [1, 0]


def test_penalties() -> None:
    seen, counts = np.array([True, True, False]), np.array([0, 2, 0])
    assert penalised(np.array([4.0, -4.0, 1.0]), seen, counts, 2, 0, 0).tolist() == [2, -8, 1]
    assert penalised(np.array([4.0, -4.0, 1.0]), seen, counts, 1, 0.5, 0.25).tolist() == [4, -5, 1]


def test_candidates() -> None:
    half = np.log([0.5, 0.2, 0.3])
    assert candidates(half, 0, 1.0, 0.0).tolist() == [0, 1, 2]
    assert candidates(half, 2, 1.0, 0.0).tolist() == [0, 2]
    assert candidates(half, 0, 0.7, 0.0).tolist() == [0, 2]
    assert candidates(half, 0, 0.5, 0.0).tolist() == [0]
    assert candidates(half, 0, 1.0, 0.5).tolist() == [0, 2]
    assert candidates(half, 0, 1e-9, 0.0).tolist() == [0]
    assert candidates(np.array([-np.inf, 0.0]), 0, 1.0, 0.0).tolist() == [1]


def test_drawn() -> None:
    shares = np.array([0.5, 0.0, 0.25, 0.25, 0.0])
    assert [drawn(shares, at) for at in (0.0, 0.49, 0.5, 0.6, 0.74, 0.75, 0.999)] == [0, 0, 2, 2, 2, 3, 3]
    assert drawn(shares, 1.0) == 3


def test_logprobs() -> None:
    found = logprobs_of(LOGITS, 2, 3)
    total = math.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert found.chosen == pytest.approx(2 - total, abs=1e-12)
    assert [token for token, _ in found.top] == [1, 3, 2]
    assert [value for _, value in found.top] == pytest.approx([3 - total, 3 - total, 2 - total], abs=1e-12)
    assert logprobs_of(LOGITS, 0, 0).top == ()


# --- choices -------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_first_maximum() -> None:
    assert sampler().choose(LOGITS) == Choice(1)
    assert sampler(temperature=1e-9).choose(LOGITS) == Choice(1)
    assert sampler(temperature=1.0, top_k=1).choose(LOGITS) == Choice(1)


def test_bias_and_mask() -> None:
    assert sampler(logit_bias={4: 100.0}).choose(LOGITS).id == 4
    assert sampler(logit_bias={1: -100.0}).choose(LOGITS).id == 3
    allowed = np.array([True, False, True, False, False])
    assert sampler().choose(LOGITS, allowed).id == 2
    assert {sampler(k, temperature=5.0).choose(LOGITS, allowed).id for k in range(40)} == {0, 2}
    with pytest.raises(RequestError, match="no id that may follow"):
        sampler().choose(LOGITS, np.zeros(5, bool))


def test_penalties_remember_prompt_and_answer() -> None:
    assert chosen(4, presence_penalty=2.0) == [1, 3, 2, 0]
    assert chosen(5, frequency_penalty=2.0) == [1, 3, 2, 0, 1]
    assert chosen(1, repetition_penalty=100.0, prompt=(1, 3, 700)) == [2]
    assert chosen(3, repetition_penalty=100.0) == [1, 3, 2]


def test_logprobs_are_the_models_own() -> None:
    plain = sampler(top_logprobs=2).choose(LOGITS)
    bent = sampler(top_logprobs=2, temperature=9.0, logit_bias={1: 100.0}).choose(LOGITS)
    assert plain == bent
    assert plain.logprobs == logprobs_of(LOGITS, 1, 2)
    assert sampler().choose(LOGITS).logprobs is None


def test_the_same_seed_gives_the_same_choices() -> None:
    first = chosen(50, temperature=1.0, seed=7)
    assert first == chosen(50, temperature=1.0, seed=7)
    assert first != chosen(50, temperature=1.0, seed=8)
    assert len(set(first)) > 2


def test_seed_and_index_alone_make_the_number() -> None:
    assert uniform(3, 0) == uniform(3, 0) != uniform(3, 1)
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    drawn = np.array([uniform(seed, index) for seed in range(40) for index in range(50)])
    assert 0 <= drawn.min() < 0.01 < 0.99 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.02


def test_choices_follow_the_probabilities() -> None:
    found = np.bincount(chosen(4000, temperature=2.0, seed=3), minlength=5) / 4000
    np.testing.assert_allclose(found, softmax(LOGITS.astype(np.float64) / 2), atol=0.03)


@given(scores, st.integers(0, 12), st.sampled_from([0.05, 0.3, 0.7, 0.99, 1.0]), st.sampled_from([0.0, 0.1, 0.6, 1.0]))
def test_candidates_are_what_the_rules_say(x: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    order = sorted(range(len(x)), key=lambda k: (-x[k], k))
    kept = [k for k in order if min_p == 0 or x[k] >= x.max() + math.log(min_p)]
    kept = kept[:top_k] if top_k else kept
    probabilities = softmax(x[kept])
    if top_p < 1:
        mass = np.cumsum(probabilities)
        kept = kept[: next((k + 1 for k, sum_ in enumerate(mass) if sum_ >= top_p), len(kept))]
    assert candidates(x, top_k, top_p, min_p).tolist() == sorted(kept)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(0.01, 0.999))
def test_a_large_vocabulary_is_cut_like_a_small_one(seed: int, top_p: float) -> None:
    x = np.random.default_rng(seed).normal(0, 3, 6000)
    order = np.argsort(-x, kind="stable")
    count = int(np.searchsorted(np.cumsum(softmax(x)[order]), top_p)) + 1
    found = candidates(x, 0, top_p, 0.0)
    assert abs(len(found) - min(count, 6000)) <= 1  # the sums differ in their last bit
    assert set(found) <= set(order[: count + 1].tolist())


# --- refusals ------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, Any, str]] = [
    ("temperature", math.nan, "temperature: got nan, expected a number from 0 to 100"),
    ("temperature", -0.1, "got -0.1"),
    ("temperature", math.inf, "got inf"),
    ("temperature", "1", "got str"),
    ("temperature", True, "got bool"),
    ("temperature", None, "got NoneType"),
    ("temperature", 10**400, "temperature: got 1000"),
    ("top_k", -1, "top_k: got -1, expected 0 to"),
    ("top_k", 1.5, "top_k: got 1.5"),
    ("top_p", 0.0, "top_p: got 0.0, expected a number above 0 and up to 1"),
    ("top_p", 1.01, "got 1.01"),
    ("top_p", math.nan, "got nan"),
    ("min_p", -1, "min_p: got -1"),
    ("seed", 2**64, "seed: got"),
    ("seed", 1.0, "seed: got 1.0"),
    ("repetition_penalty", 0.0, "repetition_penalty: got 0.0, expected a number above 0"),
    ("presence_penalty", 2.1, "presence_penalty: got 2.1, expected a number from -2 to 2"),
    ("frequency_penalty", -math.inf, "frequency_penalty: got -inf"),
    ("top_logprobs", 21, "top_logprobs: got 21, expected 0 to 20"),
    ("logit_bias", {5: 1.0}, "logit_bias, id: got 5, expected 0 to 4"),
    ("logit_bias", {-1: 1.0}, "logit_bias, id: got -1"),
    ("logit_bias", {"1": 1.0}, "logit_bias, id: got str"),
    ("logit_bias", {1: math.nan}, r"logit_bias\[1\]: got nan, expected a number from -100 to 100"),
    ("logit_bias", {1: 101}, r"logit_bias\[1\]: got 101"),
    ("logit_bias", [1], "logit_bias: got list, expected Mapping"),
    ("logit_bias", dict.fromkeys(range(1025), 0.0), "entries of logit_bias: got 1025, expected 0 to 1024"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_parameters_are_refused_in_words(name: str, value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check_sampling(dataclasses.replace(Sampling(), **{name: value}), 5)


def test_the_limits_themselves_are_taken() -> None:
    check_sampling(Sampling(), 5)
    check_sampling(Sampling(100, 2**31 - 1, 1, 1, 2**64 - 1, 100, 2, -2, {0: -100, 4: 100.0}, 20), 5)
    check_sampling(Sampling(np.float32(0.5), 0, 1e-9, 0, -(2**63), 1e-9, -2, 2, {}, 0), 5)  # pyright: ignore
    for wrong in (None, {}, "greedy"):
        with pytest.raises(RequestError, match="expected Sampling"):
            check_sampling(wrong, 5)  # pyright: ignore
