"""The next turn by ids: what came before stays, and the template's own text joins it to the question."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_requests import CAT, pictured, text

from molmo2_iree.errors import RequestError, UnsupportedError
from molmo2_iree.preprocess.payload import check_payload
from molmo2_iree.preprocess.prepare import HostProcessor
from molmo2_iree.preprocess.prompt import compile_template
from molmo2_iree.preprocess.turns import continued, turn_ids
from molmo2_iree.runtime.model import Model


def test_what_stands_between_an_answer_and_the_next(model: Model) -> None:
    tokenizer = model.processor.tokenizer
    end, start = tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|im_start|>")
    wanted = [end, *tokenizer.encode_text("\n"), start, *tokenizer.encode_text("user\nWhy?"), end]
    wanted += [*tokenizer.encode_text("\n"), start, *tokenizer.encode_text("assistant\n")]
    assert turn_ids(model.processor, "Why?") == wanted


def test_what_came_before_stays(model: Model) -> None:
    payload = pictured(model, [CAT])
    longer = continued(model.processor, payload, [65, 66], "Why?")
    check_payload(longer, model.architecture)
    length = len(payload.ids)
    np.testing.assert_array_equal(longer.ids[:length], payload.ids)
    assert longer.ids[length : length + 2].tolist() == [65, 66]
    np.testing.assert_array_equal(longer.types[:length], payload.types)
    assert not longer.types[length:].any()
    assert longer.patches is payload.patches
    assert len(continued(model.processor, payload, [], "Why?").ids) == len(longer.ids) - 2


def test_it_is_the_rendered_conversation_up_to_the_space_before_an_answer(model: Model) -> None:
    """The template writes one space before a past answer, which the prompt it answered did not have."""
    tokenizer = model.processor.tokenizer
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Why?"},
    ]
    rendered = tokenizer.decode(model.prepare(messages, []).ids.tolist())
    turned = continued(model.processor, text(model, "Who?"), tokenizer.encode_text("A cat."), "Why?")
    assert tokenizer.decode(turned.ids.tolist()) == rendered.replace("\n assistant", "\nassistant")


@given(st.text(min_size=1, max_size=30).filter(lambda said: not any("\ud800" <= c <= "\udfff" for c in said)))
def test_typed_text_stays_text(model: Model, said: str) -> None:
    ids = turn_ids(model.processor, said)
    special = {model.processor.tokenizer.token_id(name) for name in ("<|im_end|>", "<|im_start|>")}
    assert sum(token in special for token in ids) == 4


@pytest.mark.parametrize("question", ["", "\ud800"])
def test_questions_that_are_none(model: Model, question: str) -> None:
    with pytest.raises(RequestError):
        continued(model.processor, text(model), [65], question)


def test_a_template_that_drops_the_past(model: Model) -> None:
    source = "{{ '<|im_start|>' ~ messages[-1]['content'] ~ '<|im_end|>' }}"
    processor = HostProcessor(model.architecture, model.processor.tokenizer, compile_template(source))
    with pytest.raises(UnsupportedError, match="texts of messages in another order or number"):
        turn_ids(processor, "Why?")
