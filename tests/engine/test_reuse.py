"""Prefixes and pictures that are not computed again: the same logits as without, and never another's."""

from typing import Any

import numpy as np
import pytest
from engine_requests import Asked, request
from runtime_requests import CAT, noise, pictured, text

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.preprocess.turns import continued
from molmo2_iree.runtime.conversation import Conversation
from molmo2_iree.runtime.engine import Engine, Options
from molmo2_iree.runtime.model import Model
from molmo2_iree.runtime.sampling import Sampling

TOLERANCE = 5e-4
"""Of a logit; the gates allow as much."""


def fresh(model: Model, payload: Payload, tokens: int = 12) -> Asked:
    """The answer of an engine that has seen nothing."""
    with Engine(model) as engine:
        asked = Asked(engine, request(model, payload, tokens))
        asked.end()
        return asked


def kept(engine: Engine, model: Model, payload: Payload, tokens: int = 12, **changed: Any) -> Asked:
    """An answer that may go on from what is kept, and is kept."""
    asked = Asked(engine, request(model, payload, tokens, reuse=True, **changed))
    asked.end()
    return asked


def agree(got: Asked, wanted: Asked) -> None:
    """The same ids, and logprobs within the tolerance."""
    assert got.ids == wanted.ids
    for (_, a), (_, b) in zip(got.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_allclose([p for _, p in a.top], [p for _, p in b.top], atol=TOLERANCE)
        assert abs(a.chosen - b.chosen) < TOLERANCE


@pytest.mark.parametrize("pictures", [[], [CAT], [CAT, noise(1)]], ids=["text", "one", "two"])
def test_the_next_turn_reads_only_what_is_new(model: Model, pictures: list[Any]) -> None:
    with Engine(model) as engine:
        payload = pictured(model, pictures, "What is there? " * 8) if pictures else text(model, "What is it? " * 8)
        one = kept(engine, model, payload)
        units = engine.metrics().counters.units.copy()
        following = continued(model.processor, payload, one.ids, "And what else?")
        two = kept(engine, model, following)
        assert two.end().usage.reused == len(payload.ids) + 11  # the last id said is not in the cache
        assert engine.metrics().counters.units - units == {"Extend": 1}
        agree(two, fresh(model, following))
        third = continued(model.processor, following, two.ids, "Why?")
        three = kept(engine, model, third)
        assert three.end().usage.reused == len(following.ids) + 11
        agree(three, fresh(model, third))


def test_the_same_prompt_again_reads_one_id(model: Model) -> None:
    payload = pictured(model, [CAT])
    with Engine(model) as engine:
        first, again = kept(engine, model, payload), kept(engine, model, payload)
        assert (first.end().usage.reused, again.end().usage.reused) == (0, len(payload.ids) - 1)
        agree(again, first)


def test_another_question_about_the_same_picture(model: Model) -> None:
    with Engine(model) as engine:
        kept(engine, model, pictured(model, [CAT], "What is there?"))
        other = pictured(model, [CAT], "Is it a dog or a cat?")
        asked = kept(engine, model, other)
        assert 0 < asked.end().usage.reused < len(other.ids)
        agree(asked, fresh(model, other))


def test_another_picture_behind_the_same_text_never_hits(model: Model) -> None:
    """Ids are equal to the last one; only the pixels differ."""
    pictures = [noise(k) for k in range(3)]
    payloads = [pictured(model, [picture]) for picture in pictures]
    payloads += [pictured(model, pair) for pair in ([pictures[0], pictures[1]], [pictures[1], pictures[0]])]
    assert all(np.array_equal(payloads[0].ids, payload.ids) for payload in payloads[1:3])
    assert np.array_equal(payloads[3].ids, payloads[4].ids)
    wanted = [fresh(model, payload) for payload in payloads]
    assert len({tuple(one.ids) for one in wanted}) > 1 or len({str(one.logprobs) for one in wanted}) == 5
    with Engine(model) as engine:
        for _ in range(2):
            for payload, alone in zip(payloads[:3] + payloads[3:], wanted, strict=True):
                asked = kept(engine, model, payload)
                assert asked.end().usage.reused in (0, len(payload.ids) - 1)
                agree(asked, alone)


def test_one_pixel_is_another_picture(model: Model) -> None:
    picture = noise(4)
    changed = picture.copy()
    changed[70, 45, 1] ^= 255
    with Engine(model) as engine:
        kept(engine, model, pictured(model, [picture]))
        asked = kept(engine, model, pictured(model, [changed]))
        assert asked.end().usage.reused == 0
        assert engine.metrics().counters.picture_hits == 0
        agree(asked, fresh(model, pictured(model, [changed])))


def test_pictures_are_looked_at_once(model: Model) -> None:
    both, swapped = pictured(model, [CAT, noise(1)]), pictured(model, [noise(1), CAT])
    wanted = fresh(model, swapped)
    with Engine(model) as engine:
        Asked(engine, request(model, both)).end()
        looks = engine.metrics().counters.units["Look"]
        asked = Asked(engine, request(model, swapped, 12))
        assert asked.logprobs == wanted.logprobs
        found = engine.metrics()
        assert found.counters.units["Look"] == looks
        assert (found.counters.picture_queries, found.counters.picture_hits) == (4, 2)
        assert found.picture_bytes > 0


def test_no_budget_keeps_no_picture(model: Model) -> None:
    with Engine(model, Options(picture_bytes=0)) as engine:
        for _ in range(2):
            Asked(engine, request(model, pictured(model, [CAT]))).end()
        assert (engine.metrics().counters.picture_hits, engine.metrics().picture_bytes) == (0, 0)


def test_one_picture_twice_in_a_prompt(model: Model) -> None:
    payload = pictured(model, [noise(6), noise(6)])
    with Engine(model) as engine:
        asked = Asked(engine, request(model, payload))
        wanted = model.prefill(payload, model.new_cache())
        assert asked.ids[0] == int(np.argmax(wanted))
        assert engine.metrics().counters.units["Look"] == 1


def test_several_conversations_at_once(model: Model) -> None:
    talks = [Conversation(model) for _ in range(4)]
    with Engine(model) as engine:
        for turn in range(3):
            asked = []
            for k, talk in enumerate(talks):
                question, pictures = f"Question {turn} of talk {k}, please. ", [noise(k)] if not turn else []
                payload = talk.ask(question, pictures)
                one = Asked(engine, request(model, payload, 10, reuse=True))
                asked.append((talk, payload, question, pictures, one))
            for talk, payload, question, pictures, one in asked:
                talk.answered(payload, question, pictures, one.ids, one.text)
                assert (one.end().usage.reused > 0) == (turn > 0)
                agree(one, fresh(model, payload, 10))


def test_a_request_that_wants_no_reuse(model: Model) -> None:
    payload = pictured(model, [CAT])
    with Engine(model) as engine:
        kept(engine, model, payload)
        asked = Asked(engine, request(model, payload))
        assert asked.end().usage.reused == 0
        assert engine.metrics().counters.reused_tokens == 0


def test_sampling_does_not_change_what_is_kept(model: Model) -> None:
    payload = text(model, "Tell me of the sea. " * 6)
    with Engine(model) as engine:
        one = kept(engine, model, payload, sampling=Sampling(temperature=1.5, seed=3))
        following = continued(model.processor, payload, one.ids, "Go on.")
        agree(kept(engine, model, following), fresh(model, following))
