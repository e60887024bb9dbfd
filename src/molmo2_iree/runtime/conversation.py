"""A conversation on one engine: its prompts go on from each other, so a slot's prefix is used again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.preprocess.picture import Source
from molmo2_iree.preprocess.turns import continued
from molmo2_iree.runtime.model import Model


@dataclass
class Conversation:
    """Turns so far. Ask, answer, then tell it what was answered."""

    model: Model
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    pictures: list[Source] = field(default_factory=list[Source])
    _payload: Payload | None = None
    _said: list[int] = field(default_factory=list[int])

    def ask(self, question: str, pictures: Sequence[Source] = ()) -> Payload:
        """The prompt of the next turn; nothing is remembered before :meth:`answered`.

        New pictures move to the front of the prompt, as the template has it, and so all of it is read again; the
        tokens of older pictures are still known.
        """
        if self._payload is not None and not pictures:
            return continued(self.model.processor, self._payload, self._said, question)
        return self.model.prepare([*self.messages, _user(question, pictures)], [*self.pictures, *pictures])

    def answered(
        self, payload: Payload, question: str, pictures: Sequence[Source], ids: Sequence[int], text: str
    ) -> None:
        """Remember a turn: what :meth:`ask` gave and was given, and the answer's ids and text, whole or cut short."""
        self.messages += [_user(question, pictures), {"role": "assistant", "content": text}]
        self.pictures += pictures
        self._payload, self._said = payload, list(ids)


def _user(question: str, pictures: Sequence[Source]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image"} for _ in pictures]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}
