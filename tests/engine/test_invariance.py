"""A request's tokens, and the logits they came from, are the same alone and in any mix of companions."""

import random
import time

import pytest
from engine_requests import Asked, request
from runtime_requests import CAT, noise, of_length, pictured, text

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.engine import Engine
from molmo2_iree.runtime.generate import generate
from molmo2_iree.runtime.model import Model


@pytest.fixture(scope="module")
def payloads(model: Model) -> list[Payload]:
    """Short and long text, few and many crops, one picture and several."""
    return [
        text(model, "Why?"),
        text(model, "Name three birds, and say of each what it eats."),
        of_length(model, 300),
        of_length(model, 700),
        pictured(model, [CAT]),
        pictured(model, [noise(1, 40, 40)]),
        pictured(model, [CAT, noise(2)], "Which is a cat?"),
        pictured(model, [noise(3, 90, 700)], "What? " * 40),
    ]


@pytest.fixture(scope="module")
def alone(model: Model, payloads: list[Payload]) -> list[list[object]]:
    """Each answer with its logprobs, from an engine of its own."""
    answers = []
    for payload in payloads:
        with Engine(model) as engine:
            answers.append(Asked(engine, request(model, payload)).logprobs)
    return answers


def test_alone_it_is_what_the_simple_loop_says(
    model: Model, payloads: list[Payload], alone: list[list[object]]
) -> None:
    stop = model.architecture.tokens.stop
    for payload, answer in zip(payloads, alone, strict=True):
        wanted = list(generate(model, payload, 24))
        said = [token for token, _ in answer]  # pyright: ignore[reportGeneralTypeIssues]
        assert said[: len(wanted)] == wanted
        assert len(wanted) == 24 or said[len(wanted)] in stop


@pytest.mark.parametrize("seed", range(4))
def test_in_any_mix(model: Model, payloads: list[Payload], alone: list[list[object]], seed: int) -> None:
    chance = random.Random(seed)
    order = chance.sample(range(len(payloads)), len(payloads)) + chance.choices(range(len(payloads)), k=6)
    with Engine(model) as engine:
        asked: list[tuple[int, Asked]] = []
        decoys: list[Asked] = []
        for index in order:
            asked.append((index, Asked(engine, request(model, payloads[index]))))
            if chance.random() < 0.4:
                decoys.append(Asked(engine, request(model, chance.choice(payloads), 200)))
            time.sleep(chance.random() * 0.02)
            if decoys and chance.random() < 0.7:
                decoys.pop(chance.randrange(len(decoys))).ticket.cancel()
        for index, one in asked:
            assert one.logprobs == alone[index]
            assert one.end().reason == "length"
        for decoy in decoys:
            decoy.ticket.cancel()
        batch = engine.metrics().counters
    assert batch.step_tokens > 1.2 * sum(batch.steps.values()), "they did not run together"
    assert {slots for slots, _ in batch.steps} >= {4}


def test_a_used_slot_shows_no_trace_of_its_owners(
    model: Model, payloads: list[Payload], alone: list[list[object]]
) -> None:
    """Every slot held longer prompts, was cancelled at every point, and then gives a fresh engine's logits."""
    with Engine(model) as engine:
        for round_ in range(3):
            owners = [Asked(engine, request(model, payloads[k], 100)) for k in (7, 3, 6, 2)]
            time.sleep(0.02 * round_)
            for owner in owners:
                owner.ticket.cancel()
        probes = [Asked(engine, request(model, payloads[k])) for k in (0, 1, 4, 5)]
        for k, probe in zip((0, 1, 4, 5), probes, strict=True):
            assert probe.logprobs == alone[k]
