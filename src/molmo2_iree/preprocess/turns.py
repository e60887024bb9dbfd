"""The next turn of a conversation, by ids: what was read and said stays as it is, so nothing of it is read again."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from molmo2_iree.errors import UnsupportedError
from molmo2_iree.preprocess.layout import token_types
from molmo2_iree.preprocess.payload import Payload, check_payload
from molmo2_iree.preprocess.prepare import HostProcessor
from molmo2_iree.preprocess.prompt import check_messages, render


def continued(processor: HostProcessor, payload: Payload, answer: Sequence[int], question: str) -> Payload:
    """The prompt of ``payload``, the ``answer``'s ids, and the template's way from an answer to the next.

    Rendering the whole conversation again would write past answers from their text: other ids may stand for the same
    text, and the released template puts a space before a past answer that is not there when it is given. Pictures
    cannot be added here, as the template puts all of them first. RequestError for a question that is none.
    """
    between = turn_ids(processor, question)
    ids = np.concatenate([payload.ids, np.array([*answer, *between], np.int32)])
    types = token_types(ids, processor.architecture.tokens)
    longer = dataclasses.replace(payload, ids=ids, types=types)
    check_payload(longer, processor.architecture)
    return longer


def turn_ids(processor: HostProcessor, question: str) -> list[int]:
    """Ids from the end of an answer to the beginning of the next: the turn's end, the question, the answer's head."""
    messages = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": question},
    ]
    check_messages(messages)
    pieces = render(processor.template, messages)
    places = [place for place, (_, from_template) in enumerate(pieces) if not from_template]
    if [pieces[place][0] for place in places] != ["1", "2", question]:
        raise UnsupportedError(
            "chat_template.jinja",
            got="texts of messages in another order or number",
            expected="each text once, in order",
            fix="use the chat template of a Molmo2 release",
        )
    return processor.tokenizer.encode_pieces(pieces[places[1] + 1 :])
