"""Turns of a conversation as prompts."""

import numpy as np
import pytest
from runtime_requests import CAT, noise, text

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.turns import continued
from molmo2_iree.runtime.conversation import Conversation
from molmo2_iree.runtime.model import Model


def test_the_first_turn_is_an_ordinary_prompt(model: Model) -> None:
    np.testing.assert_array_equal(Conversation(model).ask("Why?").ids, text(model, "Why?").ids)
    assert Conversation(model).ask("Why?", [CAT, noise(1)]).images == 2


def test_the_next_turn_goes_on_by_ids(model: Model) -> None:
    talk = Conversation(model)
    first = talk.ask("What?", [CAT])
    talk.answered(first, "What?", [CAT], [65, 66], "AB")
    second = talk.ask("Why?")
    np.testing.assert_array_equal(second.ids, continued(model.processor, first, [65, 66], "Why?").ids)
    talk.answered(second, "Why?", [], [], "")
    third = talk.ask("How?")
    np.testing.assert_array_equal(third.ids[: len(second.ids)], second.ids)


def test_asking_remembers_nothing(model: Model) -> None:
    talk = Conversation(model)
    talk.ask("What?")
    np.testing.assert_array_equal(talk.ask("Why?").ids, text(model, "Why?").ids)


def test_a_later_picture_moves_to_the_front_with_the_earlier_ones(model: Model) -> None:
    talk = Conversation(model)
    talk.answered(talk.ask("What?", [CAT]), "What?", [CAT], [65], "A")
    payload = talk.ask("And this?", [noise(1)])
    assert payload.images == 2
    np.testing.assert_array_equal(payload.image(0).patches, talk.ask("What?").image(0).patches)
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And this?"}]},
    ]
    np.testing.assert_array_equal(payload.ids, model.prepare(messages, [CAT, noise(1)]).ids)


def test_a_refused_question_changes_nothing(model: Model) -> None:
    talk = Conversation(model)
    talk.answered(talk.ask("What?"), "What?", [], [65], "A")
    before = talk.ask("Why?").ids
    for question in ("", "\udfff"):
        with pytest.raises(RequestError):
            talk.ask(question)
    np.testing.assert_array_equal(talk.ask("Why?").ids, before)
